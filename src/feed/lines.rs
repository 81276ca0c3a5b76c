//! Bytes as they come, cut into lines.

use bytes::{Buf, Bytes, BytesMut};

use super::wire::MAX_LINE;

/// A line that has not ended within [`MAX_LINE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Bytes as they came, of which whole lines are taken.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// So much of the buffer holds no line end.
    searched: usize,
}

impl Lines {
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let found = self.buffer[self.searched..]
            .iter()
            .position(|&byte| byte == b'\n');
        let Some(at) = found.map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            return match self.searched {
                0..=MAX_LINE => Ok(None),
                _ => Err(TooLong),
            };
        };
        self.searched = 0;
        let line = self.buffer.split_to(at).freeze();
        self.buffer.advance(1);
        match line.len() {
            0..=MAX_LINE => Ok(Some(line)),
            _ => Err(TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_bytes_are_cut() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for bytes in text.chunks(size) {
                lines.extend(bytes);
                while let Some(line) = lines.next().unwrap() {
                    found.push(line);
                }
            }
            assert_eq!(found, ["one", "", "two"], "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_collected() {
        let mut lines = Lines::default();
        lines.extend(&vec![b'x'; MAX_LINE]);
        assert_eq!(lines.next(), Ok(None));
        lines.extend(b"x");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
