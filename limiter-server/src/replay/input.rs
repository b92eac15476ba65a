//! Lines of plain, gzip and zstd files, with a bound on their length.
//!
//! The first bytes of a file select the decompression, so names of files do not matter, and
//! standard input can be compressed. Bytes are counted before decompression, for the progress.
//!
//! Invariants: memory is bounded by the longest permitted line, since the rest of a longer one is
//! skipped; a truncated compressed file is an error and not an end. Tests: below, and
//! `tests/replay/input.rs`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

const BUFFER: usize = 256 * 1024;
/// The longest line in bytes. Longer ones are counted and skipped.
const MAX_LINE: usize = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Counts the bytes that are read from files, before decompression.
pub(super) type ByteCount = Rc<Cell<u64>>;

/// The lines of one file.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    pub(super) number: u64,
}

/// The result of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineRead {
    /// The line is in the buffer.
    Line,
    /// The line is longer than the limit, and the buffer has its start.
    TooLong,
    /// The file has ended.
    End,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Lines {
    /// Opens a file; `-` is standard input. The first bytes select the compression.
    pub(super) fn open(path: &Path, count: &ByteCount) -> io::Result<Self> {
        let file: Box<dyn Read> = match path.to_str() {
            Some("-") => Box::new(io::stdin()),
            _ => Box::new(File::open(path)?),
        };
        let counted = Counted {
            inner: file,
            count: Rc::clone(count),
        };
        let mut plain = BufReader::with_capacity(BUFFER, counted);
        let start = plain.fill_buf()?;
        let reader: Box<dyn BufRead> = if start.starts_with(&GZIP) {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain)))
        } else if start.starts_with(&ZSTD) {
            let decoder = zstd::stream::read::Decoder::with_buffer(plain)?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        } else {
            Box::new(plain)
        };
        Ok(Self {
            reader,
            buffer: Vec::new(),
            number: 0,
        })
    }

    /// Reads the next line into the buffer.
    pub(super) fn advance(&mut self) -> io::Result<LineRead> {
        self.buffer.clear();
        let mut is_too_long = false;
        loop {
            let available = self.reader.fill_buf()?;
            if available.is_empty() {
                let is_end = self.buffer.is_empty() && !is_too_long;
                self.number += u64::from(!is_end);
                return Ok(match (is_end, is_too_long) {
                    (true, _) => LineRead::End,
                    (_, true) => LineRead::TooLong,
                    _ => LineRead::Line,
                });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = available
                .get(..end.unwrap_or(available.len()))
                .unwrap_or_default();
            if self.buffer.len() + part.len() > MAX_LINE {
                is_too_long = true;
            } else if !is_too_long {
                self.buffer.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                self.number += 1;
                return Ok(if is_too_long {
                    LineRead::TooLong
                } else {
                    LineRead::Line
                });
            }
        }
    }

    /// Returns the bytes of the line, without its end.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.strip_suffix(b"\r").unwrap_or(&self.buffer)
    }
}

struct Counted<R> {
    inner: R,
    count: ByteCount,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use crate::replay::input::{ByteCount, LineRead, Lines, MAX_LINE};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("replay-input-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn lines(name: &str, bytes: &[u8]) -> std::io::Result<Vec<Vec<u8>>> {
        let scratch = Scratch::new(name, bytes);
        let mut lines = Lines::open(&scratch.0, &ByteCount::default())?;
        let mut all = Vec::new();
        while lines.advance()? != LineRead::End {
            all.push(lines.bytes().to_vec());
        }
        Ok(all)
    }

    #[test]
    fn compressed_files_have_the_lines_of_the_plain_file() {
        let text = b"one\r\ntwo\n\nfour";
        let expected: Vec<Vec<u8>> = [&b"one"[..], b"two", b"", b"four"].map(<[u8]>::to_vec).to_vec();
        assert_eq!(lines("plain", text).unwrap(), expected);

        // Two members, as `cat a.gz b.gz` writes them.
        let mut gzip = Vec::new();
        for part in [&text[..8], &text[8..]] {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(part).unwrap();
            gzip.extend(encoder.finish().unwrap());
        }
        assert_eq!(lines("gzip", &gzip).unwrap(), expected);
        assert!(lines("cut", &gzip[..gzip.len() - 5]).is_err());

        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        assert_eq!(lines("zstd", &zstd).unwrap(), expected);
    }

    #[test]
    fn long_line_is_skipped_and_counted() {
        let mut text = vec![b'x'; MAX_LINE + 1];
        text.extend(b"\nshort\n");
        let scratch = Scratch::new("long", &text);
        let mut lines = Lines::open(&scratch.0, &ByteCount::default()).unwrap();
        let read = [(); 3].map(|()| (lines.advance().unwrap(), lines.number));
        assert_eq!(
            read,
            [(LineRead::TooLong, 1), (LineRead::Line, 2), (LineRead::End, 2)]
        );
    }
}
