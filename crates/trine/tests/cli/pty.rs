//! A terminal for programs under test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const COLUMNS: u16 = 100;
const ROWS: u16 = 30;
/// What gives back the page that was there before.
pub(crate) const LEFT: &str = "\u{1b}[?1049l";
/// What shows the cursor.
pub(crate) const CURSOR: &str = "\u{1b}[?25h";

/// A pseudo-terminal and everything that was written to it.
pub(crate) struct Terminal {
    master: File,
    slave: File,
    written: Arc<Mutex<Vec<u8>>>,
    is_closing: Arc<AtomicBool>,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        Self::of_columns(COLUMNS)
    }

    /// A terminal so wide. [`Terminal::page`] is for the usual width.
    pub(crate) fn of_columns(columns: u16) -> Self {
        let open = |path: &str| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
        };
        let master = open("/dev/ptmx");
        let slave = open(&slave_of(&master));
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let is_closing = Arc::new(AtomicBool::new(false));
        let (mut reader, all) = (master.try_clone().unwrap(), Arc::clone(&written));
        let stop = Arc::clone(&is_closing);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = reader.read(&mut buffer)
                && !stop.load(Ordering::SeqCst)
            {
                all.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { master, slave, written, is_closing }
    }

    /// Starts a program on it. Standard error stays what it is.
    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        let stdin = self.slave.try_clone().unwrap();
        command.stdin(stdin).stdout(self.slave.try_clone().unwrap()).spawn().unwrap()
    }

    /// The same with standard error on the terminal.
    pub(crate) fn spawn_whole(&self, command: &mut Command) -> Child {
        self.spawn(command.stderr(self.slave.try_clone().unwrap()))
    }

    pub(crate) fn press(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).unwrap();
    }

    /// Everything that was written.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// What stands on the page.
    pub(crate) fn page(&self) -> String {
        page(&self.written())
    }

    /// Waits until the page holds a text.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait(text, || self.page().contains(text));
    }

    /// Waits until something was written.
    #[track_caller]
    pub(crate) fn wait_for_written(&self, text: &str) {
        self.wait(text, || self.written().contains(text));
    }

    /// Waits until something is so.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_there() {
            assert!(Instant::now() < deadline, "no {what:?} in:\n{}", self.page());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Presses a key once the program reads keys. Before that Ctrl-C would be a signal, which
    /// reaches nobody here: this terminal controls no program.
    #[track_caller]
    pub(crate) fn press_key(&self, key: &str) {
        let sends_signals = || self.local_modes().contains(LocalModes::ISIG);
        self.wait("a program that reads keys", || !sends_signals());
        self.press(key);
    }

    /// Whether lines are edited and Ctrl-C is a signal, as before any program ran.
    pub(crate) fn is_cooked(&self) -> bool {
        let cooked = LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO;
        self.local_modes().contains(cooked)
    }

    fn local_modes(&self) -> LocalModes {
        tcgetattr(&self.slave).unwrap().local_modes
    }

    /// Hangs up.
    pub(crate) fn close(self) {}
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::SeqCst);
        // Wakes the reader, which holds the terminal open.
        let _ = self.slave.write_all(b" ");
    }
}

/// The path of a pseudo-terminal's other end, which can be opened from here on.
fn slave_of(master: &File) -> String {
    let mut name = [0_u8; 64];
    // SAFETY: the descriptor is open, and the name is written within the array whose length is
    // given.
    let failed = unsafe {
        libc::unlockpt(master.as_raw_fd())
            | libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr().cast(), name.len())
    };
    assert_eq!(failed, 0, "there are no pseudo-terminals");
    let name = std::ffi::CStr::from_bytes_until_nul(&name).unwrap();
    name.to_str().unwrap().to_owned()
}

/// The end of a program, which must come soon.
#[track_caller]
pub(crate) fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The page that a terminal shows after these characters: places (`CSI H`), clearing (`CSI 2J`) and
/// plain characters.
fn page(written: &str) -> String {
    let mut cells = vec![vec![' '; usize::from(COLUMNS)]; usize::from(ROWS)];
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => {
                let mut parameters = String::new();
                let last = rest.by_ref().skip(1).find(|&c| {
                    let is_last = c.is_ascii_alphabetic();
                    if !is_last {
                        parameters.push(c);
                    }
                    is_last
                });
                let mut numbers = parameters.split(';').map(|number| number.parse().unwrap_or(1));
                match last {
                    Some('H') => {
                        row = numbers.next().unwrap_or(1) - 1;
                        column = numbers.next().unwrap_or(1) - 1;
                    }
                    Some('J') => cells.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            character => {
                if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = character;
                }
                column += 1;
            }
        }
    }
    let lines = cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}
