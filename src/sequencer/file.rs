//! The epoch in a file, for one process without a cluster.

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::Path,
};

use crate::meta::{ResourceVersion, UnixTime};

use super::{Error, Result, epoch};

const EPOCH_FILE: &str = "epoch";
const LOCK_FILE: &str = "lock";

/// Takes `directory`, stores its next epoch and returns that epoch's first version, with the lock that keeps others out. Blocks
/// on the disk for some milliseconds.
pub(super) fn begin(directory: &Path) -> Result<(ResourceVersion, File)> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    let lock_path = directory.join(LOCK_FILE);
    let lock = File::create(&lock_path).map_err(failed(&lock_path))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Error::InUse(directory.to_owned()),
        TryLockError::Error(source) => failed(&lock_path)(source),
    })?;
    let path = directory.join(EPOCH_FILE);
    let stored = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(failed(&path)(source)),
    };
    let (epoch, first) = epoch::next(stored.as_deref(), UnixTime::now())?;
    store(directory, &path, epoch).map_err(failed(&path))?;
    Ok((first, lock))
}

/// Replaces the file whole: after a crash it holds the old epoch or the new one.
fn store(directory: &Path, path: &Path, epoch: u32) -> std::io::Result<()> {
    let next = path.with_extension("next");
    let mut file = File::create(&next)?;
    writeln!(file, "{epoch}")?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // The rename itself is only durable with its directory.
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_begins_a_later_epoch() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("not/yet/there");
        let mut before = None;
        for _ in 0..3 {
            let (first, _lock) = begin(&directory).unwrap();
            assert!(Some(first) > before);
            let stored = fs::read_to_string(directory.join(EPOCH_FILE)).unwrap();
            assert_eq!(stored, format!("{}\n", first.epoch()));
            before = Some(first);
        }
    }

    #[test]
    fn one_process_has_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (_, lock) = begin(directory.path()).unwrap();
        assert!(matches!(begin(directory.path()), Err(Error::InUse(_))));
        drop(lock);
        assert!(begin(directory.path()).is_ok());
    }

    #[test]
    fn a_damaged_epoch_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(EPOCH_FILE), "?").unwrap();
        assert!(matches!(
            begin(directory.path()),
            Err(Error::UnreadableEpoch(_))
        ));
        assert_eq!(
            fs::read_to_string(directory.path().join(EPOCH_FILE)).unwrap(),
            "?"
        );
    }
}
