use trine_backend::{BLOCK, KvPart};

use super::*;
use crate::disk::Origin;
use crate::disk::page::tests::origin;

/// Creates the pages of a different sequence for each seed.
fn pages(seed: u32, blocks: usize) -> Vec<PageKey> {
    let tokens: Vec<u32> = (0..(blocks * BLOCK) as u32).map(|at| at ^ seed).collect();
    large().pages(false, crate::Scope::default(), &tokens).collect()
}

/// Returns an origin of pages that count as two grains.
fn large() -> Origin {
    origin(1).with_page_bytes([5000, 24])
}

fn payload(pages: &[PageKey]) -> Vec<u8> {
    pages.iter().flat_map(|key| vec![key.tokens[0] as u8; key.bytes]).collect()
}

fn write(folder: &Folder, pages: &[PageKey]) -> Written {
    folder.write(pages, &payload(pages), &[]).unwrap()
}

fn holds(folder: &Folder, key: &PageKey) -> bool {
    let mut bytes = Vec::new();
    match folder.read(key, &mut bytes) {
        Ok(()) => bytes == payload(std::slice::from_ref(key)),
        Err(_) => false,
    }
}

/// Returns the bytes that the files count as, and their names.
fn listing(path: &Path) -> (u64, Vec<String>) {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let files: Vec<_> = entries.filter(|entry| entry.file_name() != LOCK).collect();
    let bytes = files.iter().map(|entry| counted(entry.metadata().unwrap().len())).sum();
    (bytes, files.iter().map(|entry| entry.file_name().into_string().unwrap()).collect())
}

#[test]
fn what_is_written_is_read_by_another_process() {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(&path.path().join("a/b"), 1 << 20).unwrap();
    let pages = pages(1, 3);
    let written = write(&folder, &pages);
    assert_eq!((written.pages, written.names.len(), written.bytes), (3, 3, 3 * 8192));
    let other = Folder::open(&path.path().join("a/b"), 1 << 20).unwrap();
    assert!(pages.iter().all(|key| holds(&other, key)));
    assert_eq!(other.survey().unwrap().bytes, 3 * 8192);
    let local = pages[0].of(KvPart::Local, &large());
    assert!(matches!(other.read(&local, &mut Vec::new()), Err(ReadError::Io(_))), "never written");
}

#[test]
fn the_least_recently_used_pages_go_first() {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path(), 6 * 8192).unwrap();
    let sequences: Vec<_> = (0..3).map(|seed| pages(1000 * seed + 1000, 3)).collect();
    write(&folder, &sequences[0]);
    std::thread::sleep(INTERVAL);
    write(&folder, &sequences[1]);
    std::thread::sleep(INTERVAL);
    // The first sequence is used again, so the end of the second goes, then its middle.
    assert!(holds(&folder, &sequences[0][2]));
    assert!(holds(&folder, &sequences[0][1]) && holds(&folder, &sequences[0][0]));
    std::thread::sleep(INTERVAL);
    write(&folder, &sequences[2][..2]);
    let held = |sequence: usize| {
        sequences[sequence]
            .iter()
            .map(|key| folder.path.join(key.name().file_name()).exists())
            .collect::<Vec<_>>()
    };
    assert_eq!(held(0), [true, true, true]);
    assert_eq!(held(1), [true, false, false]);
    // When a sequence that is there is continued, its known pages stay.
    let written =
        folder.write(&sequences[2][2..], &payload(&sequences[2][2..]), &sequences[1][..1]);
    assert_eq!(written.unwrap().pages, 1);
    assert_eq!((held(0), held(1)), (vec![true, true, false], vec![true, false, false]));
}

#[test]
fn what_another_process_has_written_is_not_written_again() {
    let path = tempfile::tempdir().unwrap();
    let open = || Folder::open(path.path(), 4 * 8192).unwrap();
    let (one, other) = (open(), open());
    let pages = pages(1, 4);
    assert_eq!(write(&one, &pages[..3]).pages, 3);
    let old = one.path.join(pages[2].name().file_name());
    std::fs::write(&old, b"cut").unwrap();
    let written = write(&other, &pages);
    assert_eq!((written.pages, written.bytes), (2, 4 * 8192), "one is new, and one was cut");
    assert_eq!(written.found, 2);
    assert!(pages.iter().all(|key| holds(&one, key)));
}

#[test]
fn the_limit_holds_for_what_is_there_and_for_what_comes() {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path(), 1 << 20).unwrap();
    for seed in 1..11 {
        write(&folder, &pages(seed * 1000, 4));
    }
    assert_eq!(listing(path.path()).0, 40 * 8192);
    // A later process may have a smaller limit.
    let smaller = Folder::open(path.path(), 5 * 8192 + 100).unwrap();
    assert_eq!(smaller.survey().unwrap().bytes, 5 * 8192);
    assert_eq!(listing(path.path()).0, 5 * 8192);
    let large = pages(77, 6);
    let written = write(&smaller, &large);
    assert_eq!((written.pages, written.bytes), (0, 5 * 8192), "more than there may be at all");
    assert!(written.found == 0 && written.error.is_none());
    assert_eq!(write(&smaller, &large[..5]).pages, 5);
    assert_eq!(listing(path.path()).0, 5 * 8192);
}

#[test]
fn damaged_cut_and_foreign_files_are_removed_and_not_used() {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path(), 1 << 20).unwrap();
    let pages = pages(1, 2);
    write(&folder, &pages);
    let place = |key: &PageKey| path.path().join(key.name().file_name());
    let (sound, other) =
        (std::fs::read(place(&pages[0])).unwrap(), std::fs::read(place(&pages[1])).unwrap());
    let mut flipped = sound.clone();
    flipped[900] ^= 4;
    let long = [&sound[..], b"more"].concat();
    for file in
        [&flipped[..], &sound[..700], &sound[..0], &other, &long, b"GGUF", &vec![0; 1 << 20]]
    {
        std::fs::write(place(&pages[0]), file).unwrap();
        let mut bytes = vec![3];
        let error = folder.read(&pages[0], &mut bytes).unwrap_err();
        assert!(matches!(error, ReadError::Damage(_)), "{error}");
        assert_eq!(bytes, [3], "nothing of it is given");
        assert!(!place(&pages[0]).exists(), "it is removed");
        assert!(matches!(folder.read(&pages[0], &mut bytes), Err(ReadError::Io(_))));
        write(&folder, &pages[..1]);
        assert!(holds(&folder, &pages[0]), "there is room for a sound one");
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let path = tempfile::tempdir().unwrap();
    let names = ["notes.txt", "page-1", "x.partial", "ab.global.kv", "lock.kv"];
    names.iter().for_each(|name| std::fs::write(path.path().join(name), vec![1; 50_000]).unwrap());
    let folder = Folder::open(path.path(), 8192).unwrap();
    std::fs::write(path.path().join("page-1.partial"), "of a process that was killed").unwrap();
    let page = pages(1, 1);
    assert_eq!(write(&folder, &page).bytes, 8192);
    let found = listing(path.path()).1;
    assert!(names.iter().all(|name| found.contains(&(*name).to_owned())), "{found:?}");
    assert!(!found.contains(&"page-1.partial".to_owned()), "what was half written is gone");
    // A folder has the name of a page.
    let other = &pages(9, 1)[0];
    std::fs::create_dir(path.path().join(other.name().file_name())).unwrap();
    assert!(folder.read(other, &mut Vec::new()).is_err());
    assert_eq!(write(&folder, std::slice::from_ref(other)).pages, 0);
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let path = tempfile::tempdir().unwrap();
    let mut folder = Folder::open(path.path(), 1 << 20).unwrap();
    folder.write_file = |file, parts| {
        file.write_all(&parts[1][..100])?;
        Err(io::ErrorKind::StorageFull.into())
    };
    let pages = pages(1, 3);
    let written = write(&folder, &pages);
    assert_eq!((written.pages, written.bytes), (0, 0));
    assert_eq!(written.error.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    assert_eq!(listing(path.path()).1.len(), 0);
    folder.write_file = write_file;
    assert_eq!(write(&folder, &pages).pages, 3);
}

/// Threads that each open the folder behave like processes, because the lock belongs to an open
/// file.
#[test]
fn processes_share_a_folder_and_its_limit() {
    let path = tempfile::tempdir().unwrap();
    let limit = 20 * 8192;
    let threads: Vec<_> = (1..5)
        .map(|thread| {
            let path = path.path().to_owned();
            std::thread::spawn(move || {
                let folder = Folder::open(&path, limit).unwrap();
                for round in 0..15 {
                    // All threads write some of the same sequences.
                    let seed = if round % 3 == 0 { 7 } else { thread * 1000 + round };
                    let pages = pages(seed, 4);
                    let written = write(&folder, &pages);
                    assert!(written.error.is_none() && written.bytes <= limit, "{written:?}");
                    for key in &pages {
                        let mut bytes = Vec::new();
                        match folder.read(key, &mut bytes) {
                            Ok(()) => assert_eq!(bytes, payload(std::slice::from_ref(key))),
                            // Other threads needed the room.
                            Err(ReadError::Io(error)) => {
                                assert_eq!(error.kind(), io::ErrorKind::NotFound);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    assert!(folder.survey().unwrap().bytes <= limit);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(listing(path.path()).0 <= limit);
}

#[test]
fn a_folder_in_the_place_of_a_page_keeps_no_other_from_being_written() {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path(), 1 << 20).unwrap();
    let pages = pages(1, 3);
    let place = path.path().join(pages[0].name().file_name());
    std::fs::create_dir_all(place.join("full")).unwrap();
    let written = write(&folder, &pages);
    assert_eq!((written.pages, written.error.is_none()), (2, true));
    assert!(holds(&folder, &pages[1]) && holds(&folder, &pages[2]));
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_can_read_what_was_said() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new");
        let folder = Folder::open(&path, 1 << 20).unwrap();
        let pages = pages(1, 1);
        write(&folder, &pages);
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join(pages[0].name().file_name())), 0o600);
        assert_eq!(mode(&path.join(LOCK)), 0o600);
        for open in [0o770, 0o707, 0o777] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(open)).unwrap();
            let error = Folder::open(&path, 1 << 20).unwrap_err();
            assert!(matches!(error, FolderError::Open { .. }), "{error}");
            // This also holds for a folder that was opened before.
            assert!(!holds(&folder, &pages[0]));
            assert!(folder.survey().is_err());
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        assert!(holds(&folder, &pages[0]));
    }

    /// The owner of the folder could put files there, whoever owns the lock.
    #[test]
    fn folders_of_others_are_refused_and_left_as_they_are() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = tempfile::tempdir().unwrap();
        let owner = |path: &Path| std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
        owner(path.path());
        let refused = || {
            let error = Folder::open(path.path(), 1 << 20).unwrap_err();
            assert!(matches!(error, FolderError::Open { .. }), "{error}");
        };
        refused();
        assert_eq!(std::fs::read_dir(path.path()).unwrap().count(), 0);
        let lock = path.path().join(LOCK);
        std::fs::write(&lock, "").unwrap();
        owner(&lock);
        refused();
    }

    #[test]
    fn links_are_not_followed() {
        let path = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("victim");
        let keep = || assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        std::fs::write(&victim, "precious").unwrap();
        let folder = Folder::open(path.path(), 1 << 20).unwrap();
        let pages = pages(1, 2);
        let place = |key: &PageKey| path.path().join(key.name().file_name());
        let partial = format!("{}{}{}", PARTIAL[0], std::process::id(), PARTIAL[1]);
        symlink(&victim, path.path().join(partial)).unwrap();
        symlink(&victim, place(&pages[0])).unwrap();
        assert!(!holds(&folder, &pages[0]));
        assert_eq!(write(&folder, &pages).pages, 2);
        keep();
        assert!(holds(&folder, &pages[0]), "the link was replaced");
        // A page outside the folder is not used either.
        std::fs::rename(place(&pages[1]), outside.path().join("page")).unwrap();
        symlink(outside.path().join("page"), place(&pages[1])).unwrap();
        assert!(!holds(&folder, &pages[1]));
        assert_eq!(folder.survey().unwrap().names.len(), 1);
        std::fs::remove_file(path.path().join(LOCK)).unwrap();
        symlink(&victim, path.path().join(LOCK)).unwrap();
        assert!(Folder::open(path.path(), 1 << 20).is_err());
        keep();
    }

    #[test]
    fn pipes_are_not_waited_for() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::open(path.path(), 1 << 20).unwrap();
        let page = &pages(1, 1)[0];
        let place = path.path().join(page.name().file_name());
        let made = std::process::Command::new("mkfifo").arg(&place).status();
        assert!(made.unwrap().success());
        assert!(folder.read(page, &mut Vec::new()).is_err());
        assert!(folder.survey().unwrap().names.is_empty());
    }
}
