//! What all requests share: the models, the limits, the counts, and the threads for work that takes
//! time.

use std::sync::Arc;

use tokio::sync::Semaphore;
use trine_engine::ClientId;

use crate::clock::unix_seconds;
use crate::dialects::ollama::pulls::Pulls;
use crate::error::ApiError;
use crate::models::Models;
use crate::reply::warnings::{LoggedWarnings, Noted};
use crate::request::image_urls::ImageUrls;
use crate::service::guard::Guard;
use crate::service::lanes::Bulk;
use crate::service::lifecycle::{Lifecycle, Phase};
use crate::service::metrics::Metrics;
use crate::service::options::{Limits, PictureLimits, TraceParent};
use crate::service::rates::Samples;
use crate::service::rooms::{DecodingRoom, PERMIT_BYTES, PreparedRoom, Room};
use crate::service::workers::{Weight, Workers};

/// Pictures that are fetched at once, lookups of their hosts included.
const FETCHES_MAX: usize = 16;

/// Room for pictures of requests.
#[derive(Debug)]
pub(crate) struct PictureRooms {
    pub(crate) prepared: PreparedRoom,
    pub(crate) decoding: DecodingRoom,
    /// Threads that wait for other servers.
    pub(crate) fetching: Arc<Semaphore>,
    /// For files that are fetched, in permits of [`PERMIT_BYTES`], as much as for bodies.
    pub(crate) fetched: Arc<Semaphore>,
}

impl PictureRooms {
    fn new(limits: &PictureLimits, bodies_bytes: usize) -> Self {
        Self {
            prepared: PreparedRoom::new(limits.prepared_bytes),
            decoding: DecodingRoom::new(limits.decoding_bytes),
            fetching: Arc::new(Semaphore::new(FETCHES_MAX)),
            fetched: Arc::new(Semaphore::new(bodies_bytes / PERMIT_BYTES)),
        }
    }
}

/// What handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) guard: Guard,
    pub(crate) limits: Limits,
    pub(crate) trace_parent: Option<TraceParent>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Samples,
    pub(crate) logged_warnings: LoggedWarnings,
    /// Models that are being fetched.
    pub(crate) pulls: Pulls,
    /// A request for the catalogue holds it: looking may take a while, and takes one thread.
    pub(crate) catalog: tokio::sync::Mutex<()>,
    /// Room for bodies and what is made of them before the model's work.
    pub(crate) bodies: Room,
    /// As much room again for what is made for answers: a client that reads slowly keeps no body
    /// out.
    pub(crate) answers: Room,
    /// Where pictures of requests may be fetched.
    pub(crate) image_urls: Option<ImageUrls>,
    pub(crate) rooms: PictureRooms,
    workers: Workers,
    /// Where large bodies are read, and where the work that they make is done.
    pub(crate) bulk: Bulk,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
}

impl App {
    pub(crate) fn new(
        models: Models,
        guard: Guard,
        limits: Limits,
        trace_parent: Option<TraceParent>,
        image_urls: Option<ImageUrls>,
        bulk: Bulk,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            models,
            guard,
            trace_parent,
            lifecycle: Lifecycle::new(limits.request),
            metrics: Metrics::new(),
            rates: Samples::default(),
            logged_warnings: LoggedWarnings::default(),
            pulls: Pulls::default(),
            catalog: tokio::sync::Mutex::default(),
            bodies: Room::new("bodies", limits.bodies_bytes),
            answers: Room::new("answers", limits.bodies_bytes),
            image_urls,
            rooms: PictureRooms::new(&limits.pictures, limits.bodies_bytes),
            workers: Workers::new(threads),
            bulk,
            started: unix_seconds(),
            limits,
        }
    }

    /// Runs work that takes processor time, such as tokenising, beside the threads that serve
    /// connections.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        client: ClientId,
        weight: Weight,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = tokio::select! {
            biased;
            place = self.workers.of(weight).take(client) => place,
            () = self.lifecycle.reached(Phase::Aborting) => return Err(ApiError::draining()),
        };
        let noted = Noted::present();
        let work = move || {
            let _place = place;
            Noted::of_thread(noted, work)
        };
        let task = match weight {
            Weight::Light | Weight::Grammar => tokio::task::spawn_blocking(work),
            Weight::Medium | Weight::Heavy | Weight::SmallPictures | Weight::Pictures => {
                self.bulk.handle().spawn_blocking(work)
            }
        };
        task.await.unwrap_or_else(|_| {
            self.metrics.panics.inc();
            Err(ApiError::internal("the request met a defect of the server"))
        })
    }
}

/// An app of the models of [`Demo`](crate::models::testing::Demo).
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::models::KeepAlive;
    use crate::models::testing::Demo;
    use crate::service::options::ServerOptions;

    pub(crate) fn app() -> Arc<App> {
        let models = Models::new(Arc::new(Demo), KeepAlive::Forever, None, 1);
        let guard = Guard::new(&ServerOptions::default());
        let bulk = Bulk::start().expect("there are threads");
        Arc::new(App::new(models, guard, Limits::default(), None, None, bulk))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::models::testing::Demo;
    use crate::models::{
        Files, Found, KeepAlive, Library, Listed, LoadError, LoadedModel, Loader, ModelSummary,
    };
    use crate::service::lanes;

    /// The models of [`Demo`], whose list takes a while.
    struct Slow(Arc<AtomicUsize>);

    impl Files for Slow {
        fn stamp(&self, model: &str) -> u64 {
            Demo.stamp(model)
        }

        fn summary(&self, model: &str) -> Result<ModelSummary, String> {
            Demo.summary(model)
        }
    }

    impl Loader for Slow {
        fn list(&self) -> Vec<Listed> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            Demo.list()
        }

        fn find(&self, name: &str) -> Result<Option<Found>, String> {
            Demo.find(name)
        }

        fn bytes(&self, model: &str) -> u64 {
            Demo.bytes(model)
        }

        fn load(&self, model: &str) -> Result<LoadedModel, LoadError> {
            Demo.load(model)
        }

        fn library(&self) -> Option<&dyn Library> {
            Some(&Demo)
        }
    }

    #[tokio::test]
    async fn requests_that_list_models_at_once_look_once() {
        let looks = Arc::new(AtomicUsize::new(0));
        let loader = Arc::new(Slow(Arc::clone(&looks)));
        let models = Models::new(loader, KeepAlive::Forever, None, 1);
        models.manage_here(|_| Ok(())).unwrap();
        let list = || models.entries();
        let listed = tokio::join!(list(), list(), list(), list(), list(), list());
        assert_eq!((listed.0.len(), listed.5.len()), (2, 2));
        assert_eq!(looks.load(Ordering::SeqCst), 2, "once at the start, once for all of them");
    }

    /// Work of large bodies gives way to that of small ones.
    #[tokio::test]
    async fn large_bodies_are_worked_on_in_the_second_lane() {
        let app = testing::app();
        for (weight, is_bulk) in [
            (Weight::Light, false),
            (Weight::Grammar, false),
            (Weight::Medium, true),
            (Weight::Heavy, true),
            (Weight::SmallPictures, true),
            (Weight::Pictures, true),
        ] {
            let name = || Ok(std::thread::current().name().map(str::to_owned));
            let name = app.work(ClientId::default(), weight, name).await.unwrap();
            assert_eq!(name.as_deref() == Some(lanes::BULK), is_bulk, "{weight:?}: {name:?}");
        }
    }
}
