//! Pictures that are fetched from a server that is slow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use trine_server::{Fetch, Fetched, Fetcher, ImageUrls};

use crate::pictures::{CHAT, image, message, server_with, user};

/// Time for the pictures of a request.
const TIME: Duration = Duration::from_millis(400);
/// How long the first answer takes.
const PAUSE: Duration = Duration::from_millis(50);

/// Leads on after a pause, and then answers too late. Notes the time that it is given.
#[derive(Debug, Default)]
struct Slow(Mutex<Vec<Duration>>);

impl Fetcher for Slow {
    fn get(&self, request: &Fetch) -> Result<Fetched, String> {
        self.0.lock().unwrap().push(request.time);
        if request.url.ends_with("moved") {
            std::thread::sleep(PAUSE);
            return Ok(Fetched::Redirect("slow".to_owned()));
        }
        std::thread::sleep(request.time + PAUSE);
        Ok(Fetched::Body(Vec::new()))
    }
}

/// The whole way of a request's pictures has one time, which a fetcher is told the rest of.
#[test]
fn pictures_that_do_not_come_in_time_are_an_error() {
    let slow = Arc::new(Slow::default());
    let fetcher: Arc<dyn Fetcher> = slow.clone();
    let server = server_with(|options| {
        options.image_urls = Some(ImageUrls { hosts: vec!["1.1.1.1".to_owned()], fetcher });
        options.limits.pictures.fetching = TIME;
    });
    let parts = [image("https://1.1.1.1/moved"), image("https://1.1.1.1/never")];
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&parts)]}));
    assert_eq!(status, 400, "{error}");
    assert_eq!(error["error"]["param"], "messages[0].content[0].image_url.url");
    assert!(message(&error).contains("within 0.4 s"), "{error}");
    let times = slow.0.lock().unwrap();
    assert_eq!(times.len(), 2, "the second picture is not asked for");
    assert!(times[0] <= TIME && times[1] + PAUSE <= times[0], "{times:?}");
}
