//! The requests of one generation: which target is asked next, and after what wait (SC-3.05 to 3.13, 3.25, 3.26).
//!
//! Pure: it counts, and names a wait; it has no clock and asks nobody. Every generation begins with the first target
//! again, also the repair of a program that failed.

use std::time::Duration;

use super::{ProviderError, ProviderErrorClass};

/// The first wait when a server that limits requests does not say how long; it doubles with every rotation.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait, also when a server asks for more (S8).
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Most requests of one generation, and most targets of a list.
pub(crate) const MAX_REQUESTS: u32 = 16;

/// Where a generation's requests stand.
#[derive(Clone, Debug)]
pub struct Rotation {
    targets: u32,
    attempts: u32,
    made: u32,
    /// Every target that was asked in this rotation limits requests.
    all_limited: bool,
    /// The longest wait that one of them asked for.
    longest: Option<Duration>,
    /// Rotations in a row in which every target did.
    limited_rotations: u32,
}

impl Rotation {
    /// Over so many targets, with at most so many requests; at least one of each is assumed.
    pub fn new(targets: usize, attempts: u32) -> Self {
        let targets = u32::try_from(targets).unwrap_or(u32::MAX).max(1);
        Self { targets, attempts: attempts.max(1), made: 0, all_limited: true, longest: None, limited_rotations: 0 }
    }

    /// The target that is asked now: the first at first (SC-3.26), and each request goes to the next.
    pub fn target(&self) -> usize {
        (self.made % self.targets) as usize
    }

    /// Requests that may still be made.
    pub fn left(&self) -> u32 {
        self.attempts.saturating_sub(self.made)
    }

    /// The request failed. Gives the wait before the next one, or `None` when there is none to come.
    ///
    /// Nobody waits while another target is free (SC-3.10), nor after the last request (SC-3.13). When a whole rotation
    /// met nothing but rate limits, the wait is the longest that was asked for (SC-3.11), or 1, 2, 4 up to 60 s (SC-3.09).
    pub fn failed(&mut self, error: &ProviderError) -> Option<Duration> {
        if error.class == ProviderErrorClass::RateLimit {
            self.longest = self.longest.max(error.retry_after);
        } else {
            self.all_limited = false;
        }
        self.next()
    }

    /// A reply came, but it was no program: the next target is asked at once (SC-3.22).
    pub fn refused(&mut self) {
        self.all_limited = false;
        self.next();
    }

    fn next(&mut self) -> Option<Duration> {
        self.made += 1;
        if self.made >= self.attempts {
            return None;
        }
        if !self.made.is_multiple_of(self.targets) {
            return Some(Duration::ZERO);
        }
        let wait = if self.all_limited {
            let doubled = FIRST_WAIT.saturating_mul(1 << self.limited_rotations.min(16));
            self.limited_rotations += 1;
            self.longest.unwrap_or(doubled).min(LONGEST_WAIT)
        } else {
            self.limited_rotations = 0;
            Duration::ZERO
        };
        (self.all_limited, self.longest) = (true, None);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProviderErrorClass::{Network, RateLimit};

    fn failure(class: ProviderErrorClass, retry_after: Option<u64>) -> ProviderError {
        ProviderError { retry_after: retry_after.map(Duration::from_secs), ..ProviderError::new(class, "no") }
    }

    /// The target of each request, and the seconds waited before each of them but the first.
    fn play(targets: usize, attempts: u32, failures: &[(ProviderErrorClass, Option<u64>)]) -> (Vec<usize>, Vec<u64>) {
        let mut rotation = Rotation::new(targets, attempts);
        let (mut asked, mut waits) = (vec![rotation.target()], Vec::new());
        for (class, retry_after) in failures {
            let Some(wait) = rotation.failed(&failure(*class, *retry_after)) else { break };
            waits.push(wait.as_secs());
            asked.push(rotation.target());
        }
        (asked, waits)
    }

    #[test]
    fn sc_3_09_the_fallback_doubles_up_to_a_minute() {
        let (_, waits) = play(1, 9, &[(RateLimit, None); 9]);
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn sc_3_10_to_3_13_waits_over_several_targets() {
        assert_eq!(play(2, 2, &[(RateLimit, Some(30))]), (vec![0, 1], vec![0]));
        assert_eq!(play(2, 3, &[(RateLimit, Some(5)), (RateLimit, Some(20))]), (vec![0, 1, 0], vec![0, 20]));
        assert_eq!(play(1, 2, &[(RateLimit, Some(600)); 2]), (vec![0, 0], vec![60]));
        // One of two is free: the rotation goes on at once, and the doubling begins again.
        let mixed = [(RateLimit, None), (RateLimit, None), (RateLimit, None), (Network, None), (RateLimit, None)];
        assert_eq!(play(2, 6, &mixed).1, [0, 1, 0, 0, 0]);
    }

    #[test]
    fn sc_3_25_round_robin() {
        assert_eq!(play(3, 7, &[(Network, None); 7]).0, [0, 1, 2, 0, 1, 2, 0]);
    }
}
