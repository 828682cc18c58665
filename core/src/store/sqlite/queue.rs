//! What waits for the writer: bounded in number and in bytes, handed over in order.
//!
//! Handing over costs a lock and a push. Nobody pays for waking the writer while it only rests between two looks, unless
//! somebody waits for the disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::writer::Ack;
use crate::log::record::CallRecord;
use crate::store::{Change, StoreError, Unit};
use crate::value::Value;

/// Units that may wait; a full queue holds callers up until there is room.
pub(super) const UNITS: usize = 4_096;
/// Bytes of values and texts in them, roughly. One unit may be larger, and then waits alone.
const BYTES: usize = 64 << 20;

/// One unit on its way to the disk.
pub(super) enum Job {
    /// To be written.
    Write(Unit, Option<Arc<Ack>>),
    /// Everything before it is on the disk once this is answered.
    Sync(Arc<Ack>),
}

/// Why a job was not taken.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refused {
    /// There was no room until the deadline.
    Full,
    /// There is no room, for the writer cannot write.
    Trouble(StoreError),
    /// The writer has ended.
    Ended,
}

/// What [`Queue::rest`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rested {
    /// There is something to do.
    Work,
    /// There is nothing yet.
    Idle,
    /// Nothing will come any more.
    Closed,
}

/// The queue between all callers and the one writer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// For the writer: something came.
    came: Condvar,
    /// For callers: the writer took something, or ended.
    room: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<(Job, usize)>,
    bytes: usize,
    /// Callers that wait for room.
    held_up: usize,
    /// The writer sleeps until somebody wakes it.
    asleep: bool,
    /// Why the writer cannot write at present.
    trouble: Option<StoreError>,
    closed: bool,
    ended: bool,
}

impl Queue {
    /// Hands a job over; waits for room until `deadline`.
    pub(super) fn send(&self, job: Job, deadline: Instant) -> Result<(), Refused> {
        let bytes = weight(&job);
        let awaited = matches!(job, Job::Write(_, Some(_)) | Job::Sync(_));
        let mut waiting = self.waiting.lock();
        while !waiting.ended && !waiting.has_room(bytes) {
            if let Some(trouble) = &waiting.trouble {
                return Err(Refused::Trouble(trouble.clone()));
            }
            waiting.held_up += 1;
            let timed_out = self.room.wait_until(&mut waiting, deadline).timed_out();
            waiting.held_up -= 1;
            if timed_out && !waiting.has_room(bytes) {
                return Err(Refused::Full);
            }
        }
        if waiting.ended {
            return Err(Refused::Ended);
        }
        waiting.bytes += bytes;
        waiting.jobs.push_back((job, bytes));
        let wake = std::mem::take(&mut waiting.asleep) || awaited;
        drop(waiting);
        if wake {
            self.came.notify_one();
        }
        Ok(())
    }

    /// Moves what waits into `jobs`, up to `limit` of them there.
    pub(super) fn take(&self, jobs: &mut Vec<Job>, limit: usize) {
        let mut waiting = self.waiting.lock();
        while jobs.len() < limit
            && let Some((job, bytes)) = waiting.jobs.pop_front()
        {
            waiting.bytes -= bytes;
            jobs.push(job);
        }
        if waiting.held_up > 0 {
            self.room.notify_all();
        }
    }

    /// The writer rests: for `time`, or until somebody comes.
    pub(super) fn rest(&self, time: Option<Duration>) -> Rested {
        let mut waiting = self.waiting.lock();
        if waiting.jobs.is_empty() && !waiting.closed {
            match time {
                Some(time) => drop(self.came.wait_for(&mut waiting, time)),
                None => {
                    waiting.asleep = true;
                    self.came.wait(&mut waiting);
                    waiting.asleep = false;
                }
            }
        }
        match (waiting.jobs.is_empty(), waiting.closed) {
            (false, _) => Rested::Work,
            (true, false) => Rested::Idle,
            (true, true) => Rested::Closed,
        }
    }

    /// The writer cannot write, or can again.
    pub(super) fn set_trouble(&self, trouble: Option<StoreError>) {
        let mut waiting = self.waiting.lock();
        if trouble.is_some() && waiting.held_up > 0 {
            self.room.notify_all();
        }
        waiting.trouble = trouble;
    }

    /// Whether nobody will send any more.
    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Lets the writer end once it has written what waits.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.came.notify_one();
    }

    /// Waits until the writer has ended; false when `deadline` came first.
    pub(super) fn wait_for_end(&self, deadline: Instant) -> bool {
        let mut waiting = self.waiting.lock();
        while !waiting.ended {
            if self.room.wait_until(&mut waiting, deadline).timed_out() {
                return waiting.ended;
            }
        }
        true
    }

    /// The writer has ended: what waits still is dropped, and nobody waits for room any more.
    pub(super) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.ended = true;
        let left = std::mem::take(&mut waiting.jobs);
        drop(waiting);
        self.room.notify_all();
        for (job, _) in left {
            if let Job::Write(_, Some(ack)) | Job::Sync(ack) = job {
                ack.abandon();
            }
        }
    }
}

impl Waiting {
    fn has_room(&self, bytes: usize) -> bool {
        self.jobs.is_empty() || (self.jobs.len() < UNITS && self.bytes + bytes <= BYTES)
    }
}

/// About how many bytes a job holds.
fn weight(job: &Job) -> usize {
    match job {
        Job::Write(unit, _) => unit.iter().map(weight_of_change).sum(),
        Job::Sync(_) => 0,
    }
}

fn weight_of_change(change: &Change) -> usize {
    match change {
        Change::Began(began) => began.record.values().map(weight_of_value).sum(),
        Change::Intent(intent) => intent.args.values().map(weight_of_value).sum(),
        Change::Effect { result, .. } => result.as_ref().map_or_else(String::len, weight_of_value),
        Change::Ended { record, .. } => weight_of_record(record),
        Change::Context { writes, .. } => {
            writes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, weight_of_value)).sum()
        }
        Change::Kept { program, .. } => program.code.len(),
        Change::Delegate { delegate, .. } => delegate.contract.values().map(weight_of_value).sum(),
        Change::State { .. } | Change::Deleted { .. } | Change::Used { .. } => 0,
    }
}

fn weight_of_record(record: &CallRecord) -> usize {
    let named: usize = record.kwargs.values().map(weight_of_value).sum();
    let debug = record.debug.as_ref().map_or(0, |debug| debug.system_prompt.len() + debug.user_prompt.len());
    let code = record.metadata.code.as_ref().map_or(0, |code| code.len());
    let args: usize = record.args.iter().map(weight_of_value).sum();
    args + named + weight_of_value(record.outcome.value()) + code + debug
}

fn weight_of_value(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 0,
            Value::String(text) => text.len(),
            Value::List(list) => list.iter().map(weight_of_value).sum(),
            Value::Map(map) => map.iter().map(|(key, item)| key.len() + weight_of_value(item)).sum(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::AgentId;

    fn job(bytes: usize) -> Job {
        let writes = [("key".to_owned(), Some(Value::String("x".repeat(bytes))))].into();
        Job::Write(vec![Change::Context { agent: AgentId(1), writes }], None)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(5)
    }

    #[test]
    fn it_is_bounded_by_bytes_and_a_large_unit_waits_alone() {
        let queue = Queue::default();
        assert_eq!(queue.send(job(2 * BYTES), soon()), Ok(()));
        assert_eq!(queue.send(job(1), soon()), Err(Refused::Full));
        let mut taken = Vec::new();
        queue.take(&mut taken, 8);
        assert_eq!(taken.len(), 1);
        assert_eq!(queue.send(job(BYTES / 2), soon()), Ok(()));
        assert_eq!(queue.send(job(BYTES / 2), soon()), Err(Refused::Full));
        assert_eq!(queue.send(job(1), soon()), Ok(()));
    }

    #[test]
    fn it_is_bounded_by_units_and_room_wakes_who_waits() {
        let queue = Arc::new(Queue::default());
        (0..UNITS).for_each(|_| assert_eq!(queue.send(job(1), soon()), Ok(())));
        assert_eq!(queue.send(job(1), soon()), Err(Refused::Full));
        let waiting = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.send(job(1), Instant::now() + Duration::from_secs(60)))
        };
        while queue.waiting.lock().held_up == 0 {
            std::thread::yield_now();
        }
        queue.take(&mut Vec::new(), 1);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }

    #[test]
    fn an_ended_writer_leaves_nobody_waiting() {
        let queue = Queue::default();
        let ack = Arc::new(Ack::default());
        assert_eq!(queue.send(Job::Sync(ack.clone()), soon()), Ok(()));
        queue.close();
        assert_eq!(queue.rest(None), Rested::Work);
        assert!(!queue.wait_for_end(soon()));
        queue.end();
        assert!(queue.wait_for_end(soon()));
        assert!(ack.wait(Some(soon())).is_err());
        assert_eq!(queue.send(job(1), soon()), Err(Refused::Ended));
    }
}
