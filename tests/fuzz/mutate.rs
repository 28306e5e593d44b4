//! Changes bytes at random, the same for a seed and a corpus.

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// What a reader may stumble over.
const PIECES: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\0",
    b"\x1a",
    b"\x1b[31m",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\\u",
    b"\\ud800",
    b"\\u0000",
    b"\\.",
    b"-",
    b"+",
    b"-1",
    b"0",
    b"1",
    b"100000",
    b"100001",
    b"2147483647",
    b"2147483648",
    b"9223372036854775807",
    b"9223372036854775808",
    b"1e9",
    b"1.5",
    b"null",
    b"true",
    b"..",
    b".",
    b"/",
    b"*",
    b"?",
    b"(",
    b")",
    b"|",
    b"a{2}",
    b"(?i)",
    b"[^a]",
    b"=",
    b"#",
    b"!",
    b"\xd9\xa3",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x98\x80",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\x01",
];

/// No case is made longer.
const MOST: usize = 64 << 10;

/// The case with this number.
pub fn case(seed: u64, corpus: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut bytes = corpus[rng.random_range(0..corpus.len())].1.clone();
    for _ in 0..rng.random_range(1..=4) {
        let other = &corpus[rng.random_range(0..corpus.len())].1;
        change(&mut bytes, other, &mut rng);
        bytes.truncate(MOST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], rng: &mut StdRng) {
    let len = bytes.len();
    let at = rng.random_range(0..=len);
    let end = (at + rng.random_range(0..=16)).min(len);
    match rng.random_range(0..10) {
        0 if at < len => bytes[at] ^= 1 << rng.random_range(0..8),
        1 if at < len => bytes[at] = rng.random(),
        2 => drop(bytes.drain(at..end)),
        3 => bytes.truncate(at),
        4 => {
            let copy = bytes[at..end].to_vec();
            let times = 1 << rng.random_range(0..10);
            drop(bytes.splice(at..at, copy.repeat(times)));
        }
        5 => {
            let from = rng.random_range(0..=other.len());
            let to = rng.random_range(from..=other.len());
            drop(bytes.splice(at..end, other[from..to].iter().copied()));
        }
        6 => digit(bytes, rng),
        _ => {
            let piece = PIECES[rng.random_range(0..PIECES.len())];
            let end = if rng.random() { end } else { at };
            drop(bytes.splice(at..end, piece.iter().copied()));
        }
    }
}

/// Numbers are where limits are.
fn digit(bytes: &mut [u8], rng: &mut StdRng) {
    let digits: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at].is_ascii_digit())
        .collect();
    if !digits.is_empty() {
        bytes[digits[rng.random_range(0..digits.len())]] = rng.random_range(b'0'..=b'9');
    }
}
