//! `trine top`: `top/fetch.rs` asks a server, `top/status.rs` reads its answer, `top/history.rs`
//! computes rates from several answers, `top/view.rs` puts them into words for people,
//! `top/draw.rs` draws them.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ratatui::crossterm::event::{self, Event, KeyEvent};

use crate::cli::TopArgs;
use crate::failure::Interrupted;
use crate::interrupt::Watch;
use crate::terminal;
use crate::terminal::output;
use crate::terminal::screen::Screen;

mod draw;
pub(crate) mod fetch;
mod history;
mod status;
mod view;

use draw::Palette;
use fetch::{Client, Problem};
use status::Snapshot;
use view::{View, Wish};

/// The longest time until a change of the terminal's size, a lost terminal or Ctrl-C's signal is
/// noticed.
const TICK: Duration = Duration::from_millis(100);

/// A message from one of the other threads.
enum News {
    /// The outcome of a request to the server, and its time.
    Heard(Result<Snapshot, Problem>, Instant),
    /// A key was pressed.
    Key(KeyEvent),
    /// Keys can no longer be read.
    Deaf(io::Error),
    /// The number of a signal that ends the program.
    #[cfg(unix)]
    Signal(u8),
}

/// Watches a server until a key or a signal ends it, or prints one picture.
///
/// # Errors
/// Returns an error if a file cannot be read, the server wants another key, or the terminal fails;
/// when printing one picture also if the server does not answer.
pub(crate) fn run(args: TopArgs) -> Result<()> {
    let client = Client::new(&args.server)?;
    let view = View::new(args.server.url);
    if args.once || !terminal::stdout_can_draw() {
        return print(&client, view, args.interval);
    }
    watch(client, view, args.interval)
}

/// Asks twice and prints the picture after the second answer.
fn print(client: &Client, mut view: View, interval: Duration) -> Result<()> {
    for look in 0..2 {
        if look > 0 {
            thread::sleep(interval);
        }
        let snapshot = client.ask()?;
        view.hear(Ok(snapshot), Instant::now());
    }
    output::block(&view::text(&view))
}

fn watch(client: Client, mut view: View, interval: Duration) -> Result<()> {
    let (sender, news) = channel();
    let interrupted = Watch::new();
    watch_signals(sender.clone())?;
    let keys = sender.clone();
    let asking = thread::Builder::new()
        .name("asking".to_owned())
        .spawn(move || ask(&client, interval, &sender))
        .context("the system gives no thread")?;
    let palette = Palette::new(terminal::stdout_has_colours());
    let mut screen = Screen::take()?;
    thread::Builder::new()
        .name("keys".to_owned())
        .spawn(move || read_keys(&keys))
        .context("the system gives no thread")?;
    while !asking.is_finished() {
        screen.draw(|frame| draw::draw(frame, &view, palette))?;
        let first = news.recv_timeout(TICK).ok();
        interrupted.check()?;
        for news in first.into_iter().chain(news.try_iter()) {
            if take_in(&mut view, news)? == Wish::End {
                return Ok(());
            }
        }
    }
    drop(screen);
    // Until it is told to end, the thread ends only by a panic, which the hook has reported
    // already.
    asking.join().unwrap_or_else(|panic| resume_unwind(panic));
    Ok(())
}

/// Applies a message and returns whether to end the program.
fn take_in(view: &mut View, news: News) -> Result<Wish> {
    match news {
        News::Heard(Err(Problem::Key(text)), _) => return Err(anyhow!(text)),
        News::Heard(outcome, at) => view.hear(outcome, at),
        News::Key(key) => match view.press(key) {
            Wish::Interrupt => return Err(Interrupted.into()),
            wish => return Ok(wish),
        },
        News::Deaf(error) => return Err(error).context("cannot read the keyboard"),
        #[cfg(unix)]
        News::Signal(number) => return Err(crate::failure::Signalled(number).into()),
    }
    Ok(Wish::Stay)
}

/// Passes keys on from a separate thread, because reading from a lost terminal may never return.
fn read_keys(sender: &Sender<News>) {
    loop {
        let news = match event::read() {
            Ok(Event::Key(key)) => News::Key(key),
            Ok(_) => continue,
            Err(error) => {
                let _ = sender.send(News::Deaf(error));
                return;
            }
        };
        if sender.send(news).is_err() {
            return;
        }
    }
}

/// Asks the server repeatedly. The thread is not joined for a pending answer; it ends with the
/// program.
fn ask(client: &Client, interval: Duration, sender: &Sender<News>) {
    loop {
        let outcome = client.ask();
        if sender.send(News::Heard(outcome, Instant::now())).is_err() {
            return;
        }
        thread::sleep(interval);
    }
}

/// Makes the first signal end the program in good order and the second at once. Ctrl-C is a key
/// here, and its signal is left to [`Watch`].
#[cfg(unix)]
fn watch_signals(sender: Sender<News>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGQUIT, SIGTERM};

    crate::signals::watch(&[SIGHUP, SIGQUIT, SIGTERM], move |number| {
        let _ = sender.send(News::Signal(number));
    })
}

/// Windows has no signals other than Ctrl-C.
#[cfg(windows)]
fn watch_signals(_: Sender<News>) -> Result<()> {
    Ok(())
}
