//! Ids and digests: each kind is its own type, so that one cannot be passed for another.
//!
//! Digests are SHA-256 over canonical JSON (V1, V2). Ids are unique, never hashed into a transcript (V4), and cost no
//! system call: a random prefix per process and a counter.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// The two digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

impl Digest {
    /// The digest of raw bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, pair) in text.chunks_exact(2).enumerate() {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            bytes[index] = (high * 16 + low) as u8;
        }
        Some(Self(bytes))
    }

    /// Appends the 64 digits to `out` without allocating.
    pub fn write_hex(&self, out: &mut String) {
        let mut hex = [0; 64];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&PAIRS[usize::from(byte)]);
        }
        out.push_str(std::str::from_utf8(&hex).unwrap_or_default());
    }

    /// The 64 digits.
    pub fn to_hex(&self) -> String {
        let mut out = String::with_capacity(64);
        self.write_hex(&mut out);
        out
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a digest is 64 hexadecimal digits"))
    }
}

/// 128 bits: a random prefix per process, then a counter. Unique without a system call per id.
fn fresh() -> u128 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let prefix = match PREFIX.load(Ordering::Relaxed) {
        0 => draw_prefix(),
        prefix => prefix,
    };
    (u128::from(prefix) << 64) | u128::from(COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// The process's random prefix; 0 until it is drawn.
static PREFIX: AtomicU64 = AtomicU64::new(0);

fn draw_prefix() -> u64 {
    let mut bytes = [0; 8];
    // Without system randomness, fall back to the hasher's per-process seed: ids must be unique, not secret.
    let drawn = match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id()),
    }
    .max(1);
    match PREFIX.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(other) => other,
    }
}

/// A forked child draws its own, or its ids would be its parent's.
pub(crate) fn forget_prefix() {
    PREFIX.store(0, Ordering::Relaxed);
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u128);

        impl $name {
            /// A new, unique id.
            pub fn fresh() -> Self {
                Self(fresh())
            }

            /// Reads 32 hexadecimal digits.
            pub fn parse(text: &str) -> Option<Self> {
                (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

id! {
    /// One dynamic call, by a host or by a program. Unique across processes.
    CallId
}
id! {
    /// One flow of calls: the root call and everything it led to (AC-8).
    TraceId
}
id! {
    /// One contract instance. Not part of the contract's hash (V1).
    ContractId
}
