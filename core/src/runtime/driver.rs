//! The driver: the one loop that performs what the kernel asks for.
//!
//! It stores entries before their effects, reads the clock, and hands everything else to the [`Work`] of the run at
//! hand. It decides nothing: a verdict that is not in an [`Input`] does not exist.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use crate::adapter::Profile;
use crate::contract::{ContractFactory, ExecutionContract, Manifest, ManifestTool, Millis, ModelProfile};
use crate::kernel::transcript::Transcript;
use crate::kernel::{Ask, Call, Command, Ended, Environment, Input, Kernel};
use crate::message::GrammarRef;

/// The model's window that dynamic calls reckon with, in tokens, until a provider says otherwise.
const CONTEXT_WINDOW: u64 = 131_072;

/// What a run does in the world, one boundary call at a time.
pub(crate) trait Work: Send {
    /// Readiness of the provider, or a kept program that makes it unnecessary.
    fn probe(&mut self) -> Input;

    /// Writes down what has happened so far, before something happens that cannot be taken back (P1).
    fn gate(&mut self) -> Result<(), Arc<str>>;

    /// One inference.
    fn ask<'s>(&'s mut self, ask: Box<Ask>) -> Pin<Box<dyn Future<Output = Input> + Send + 's>>;

    /// One tool call.
    fn execute(&mut self, call: Call) -> Input;
}

/// An ended run and everything that was written down of it.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) ended: Box<Ended>,
    pub(crate) transcript: Arc<Transcript>,
}

/// Takes a run from PRECHECK to TERMINATE.
pub(crate) async fn drive(contract: Arc<ExecutionContract>, environment: Arc<Environment>, work: &mut dyn Work) -> Ran {
    let began = Instant::now();
    let (mut kernel, mut step) = Kernel::start(contract, environment, Millis(0));
    let mut transcript = Transcript::new(kernel.header());
    loop {
        transcript.extend(std::mem::take(&mut step.entries));
        let input = match step.command {
            Command::Probe => work.probe(),
            Command::Infer(ask) => match work.gate() {
                Ok(()) => work.ask(ask).await,
                Err(message) => Input::PersistenceFailed { message },
            },
            Command::Execute(call) => work.execute(call),
            Command::Finish(ended) => return Ran { ended, transcript: Arc::new(transcript) },
        };
        let now = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        step = kernel.step(Millis(now), input);
    }
}

/// The factory of dynamic calls to models with that profile and grammar. A profile that does not exist is the contract's to
/// name, and PRECHECK's to refuse (EC-P4a).
pub(crate) fn factory(profile: &str, grammar: Option<GrammarRef>) -> ContractFactory {
    static MANIFEST: LazyLock<Arc<Manifest>> = LazyLock::new(|| Arc::new(manifest()));
    let known = Profile::from_name(profile);
    let unknown = || ModelProfile { id: profile.into(), ..Profile::Program.model_profile() };
    ContractFactory {
        manifest: MANIFEST.clone(),
        profile: known.map_or_else(unknown, Profile::model_profile),
        grammar,
        strict_mode: false,
        context_window: Some(CONTEXT_WINDOW),
    }
}

/// What a run with that model finds around it.
pub(crate) fn environment(profile: &str, model_fingerprint: &str) -> Arc<Environment> {
    Arc::new(Environment::new(manifest(), profile, model_fingerprint))
}

fn manifest() -> Manifest {
    Manifest::new([ManifestTool::execute_program()])
}
