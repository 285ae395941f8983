//! The transports of CORBA calls: a server for each of them, which stays, and callers in any placement.

use super::figures;
use crate::bench::{Measurement, Series};
use crate::measure::better;
use crate::place::Placement::{self, One, Two};
use crate::report::WithMotet;
use crate::sandbox::{Caller, Mode, Ready, Sandbox, Server, Setup};
use anyhow::{Context, Result, bail};
use motet_programs::{builds, find};
use std::cell::RefCell;

const SOURCES: [(&str, &str); 3] = [
    ("corba.idl", include_str!("../../../../tests/bench/corba.idl")),
    ("corba.cc", include_str!("../../../../tests/bench/corba.cc")),
    ("corba_data.h", include_str!("../../../../tests/bench/corba_data.h")),
];
/// The omniORB adapter for omniORB 4.2, and the preload object that loads it.
const ADAPTER: &str = "libmotet_omniorb42.so";
const ADAPTER_SHIM: &str = "libmotet_omniorb.so";
/// Room for the largest data with their headers; omniORB's own limit is 2 MiB.
const LARGEST_MESSAGE: &str = "134217728";

/// How two ends of CORBA calls reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// omniORB over TCP, without Motet.
    Tcp,
    /// The transport of omniORB over Unix sockets.
    Unix,
    /// omniORB over TCP with the sockets adapter.
    Sockets,
    /// The omniORB adapter.
    Corba,
}

impl Transport {
    /// The adapters of Motet.
    pub const ADAPTERS: [Transport; 2] = [Transport::Sockets, Transport::Corba];
    /// All transports, in the order in which they are shown.
    pub const ALL: [Transport; 4] = [Transport::Tcp, Transport::Unix, Transport::Sockets, Transport::Corba];

    /// The quantity that lines about this transport measure with Motet.
    pub fn with_motet(self) -> WithMotet {
        if Self::ADAPTERS.contains(&self) { WithMotet::Figure } else { WithMotet::Neither }
    }

    /// Its name in lines.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "kernel TCP",
            Transport::Unix => "omniORB's unix transport",
            Transport::Sockets => "sockets adapter",
            Transport::Corba => "omniORB adapter",
        }
    }
}

/// How both ends of a transport are started.
struct Launch {
    mode: Mode,
    environment: Vec<(String, String)>,
    endpoint: String,
}

impl Launch {
    /// How the ends of this transport are started. No other place knows that.
    fn of(transport: Transport, sandbox: &Sandbox<'_>) -> Result<Self> {
        let tcp =
            Launch { mode: Mode::WithoutMotet, environment: Vec::new(), endpoint: "giop:tcp:127.0.0.1:".to_owned() };
        Ok(match transport {
            Transport::Tcp => tcp,
            Transport::Unix => Launch { endpoint: format!("giop:unix:{}", sandbox.path("corba.socket")), ..tcp },
            Transport::Sockets => Launch { mode: Mode::WithMotet, ..tcp },
            Transport::Corba => {
                sandbox.readable(&sandbox.bench.find(ADAPTER)?)?; // the preload object looks for it in its own folder
                let shim = sandbox.readable(&sandbox.bench.find(ADAPTER_SHIM)?)?;
                // After the sockets adapter, as under `motet run`, which carries other connections.
                let preloaded = ("LD_PRELOAD".to_owned(), shim.to_string_lossy().into_owned());
                Launch { mode: Mode::WithMotet, environment: vec![preloaded], ..tcp }
            }
        })
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

struct ServerEnd {
    transport: Transport,
    launch: Launch,
    uri: String,
    _server: Server,
}

/// How the ends of a measurement differ from the usual ones.
#[derive(Debug, Clone, Copy)]
pub struct Variant<'v> {
    /// Options of omniORB for both ends. Another ORB has no variants.
    pub options: &'v [&'v str],
    /// Environment variables for both ends.
    pub environment: &'v [(&'v str, &'v str)],
    /// Transports that take part.
    pub transports: &'v [Transport],
}

impl Variant<'_> {
    /// No difference.
    pub const USUAL: Self = Self { options: &[], environment: &[], transports: &Transport::ALL };
}

/// The program of both ends.
pub enum OrbProgram {
    /// That of omniORB, `tests/bench/corba.cc`, which takes options of the ORB.
    OmniOrb(String),
    /// That of another ORB: the words to which `serve` and `call` are added.
    Other(Vec<String>),
}

impl OrbProgram {
    /// The program `pair`; without it that of omniORB, which is built.
    pub fn of(sandbox: &Sandbox<'_>, pair: Option<&str>) -> Result<Self> {
        Ok(match pair {
            Some(words) => OrbProgram::Other(words.split_whitespace().map(str::to_owned).collect()),
            None => OrbProgram::OmniOrb(compiled(sandbox)?),
        })
    }

    /// Whether it is omniORB, whose options are known.
    pub fn is_omniorb(&self) -> bool {
        matches!(self, OrbProgram::OmniOrb(_))
    }

    /// The words that start an end.
    fn words<'w>(&'w self, verb: &[&'w str], options: &[&'w str], endpoint: Option<&'w str>) -> Vec<&'w str> {
        match self {
            OrbProgram::OmniOrb(program) => {
                let mut words = [&[program.as_str()], verb, &["-ORBgiopMaxMsgSize", LARGEST_MESSAGE], options].concat();
                words.extend(endpoint.into_iter().flat_map(|endpoint| ["-ORBendPoint", endpoint]));
                words
            }
            OrbProgram::Other(words) => words.iter().map(String::as_str).chain(verb.iter().copied()).collect(),
        }
    }
}

/// The servers of all transports that are available.
pub struct Ends<'a> {
    /// The sandbox in which they run.
    pub sandbox: &'a Sandbox<'a>,
    pair: &'a OrbProgram,
    variant: Variant<'a>,
    open: Vec<ServerEnd>,
    missing: Vec<(Transport, String)>,
}

/// A transport, and where its ends run.
pub type Place = (Transport, Placement);

/// The answers of one place to one question.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The medians, with their floors.
    pub median: Series,
    /// The 99th percentiles of the same repetitions.
    pub p99: Vec<f64>,
}

/// All answers of a comparison, and the results of other measurements in it.
pub struct Answers {
    places: Vec<Place>,
    /// By place, then by question.
    answers: Vec<Vec<Answer>>,
    /// The other measurements, in their order.
    pub others: Vec<Series>,
}

impl<'a> Ends<'a> {
    /// Starts the servers.
    pub fn open(sandbox: &'a Sandbox<'a>, pair: &'a OrbProgram, variant: Variant<'a>) -> Result<Self> {
        let mut ends = Self { sandbox, pair, variant, open: Vec::new(), missing: Vec::new() };
        for &transport in variant.transports {
            match ends.serve(transport) {
                Ok(end) => ends.open.push(end),
                Err(error) if transport == Transport::Tcp => return Err(error),
                Err(error) => ends.missing.push((transport, format!("{error:#}"))),
            }
        }
        Ok(ends)
    }

    fn serve(&self, transport: Transport) -> Result<ServerEnd> {
        if transport == Transport::Unix && !self.pair.is_omniorb() {
            bail!("this transport is omniORB's");
        }
        let mut launch = Launch::of(transport, self.sandbox)?;
        let given = self.variant.environment.iter();
        launch.environment.extend(given.map(|&(name, value)| (name.to_owned(), value.to_owned())));
        let words = self.pair.words(&["serve"], self.variant.options, Some(&launch.endpoint));
        let server = self.sandbox.server_with(launch.mode, &words, &launch.environment(), Ready::Says("object "))?;
        Ok(ServerEnd { transport, uri: server.said("object")?, launch, _server: server })
    }

    /// Why a transport is not available; `None` if it is.
    pub fn missing(&self, transport: Transport) -> Option<&str> {
        self.missing.iter().find(|(of, _)| *of == transport).map(|(_, why)| why.as_str())
    }

    /// The places of all available transports: on two CPUs and on one, but adapters on one CPU only if `adapters_too`.
    pub fn places(&self, adapters_too: bool) -> Vec<Place> {
        let both = |transport: &Transport| adapters_too || !Transport::ADAPTERS.contains(transport);
        let of = |transport: Transport| {
            [Two, One].into_iter().filter(move |&on| on == Two || both(&transport)).map(move |on| (transport, on))
        };
        self.open.iter().flat_map(|end| of(end.transport)).collect()
    }

    /// Starts a caller.
    pub fn caller(&self, (transport, placement): Place) -> Result<Caller> {
        let end = self.open.iter().find(|end| end.transport == transport).context("the transport is not available")?;
        let words = self.pair.words(&["call", &end.uri], self.variant.options, None);
        self.sandbox.caller_with(Setup { mode: end.launch.mode, placement }, &words, &end.launch.environment())
    }

    /// Runs a caller and a server on two CPUs, each under a tool, with further environment variables, until both have ended. Returns the
    /// answer of the caller to one question.
    pub fn under<W: AsRef<str>>(
        &self,
        transport: Transport,
        [caller, server]: &[impl AsRef<[W]>; 2],
        more: &[(&str, &str)],
        question: &str,
    ) -> Result<String> {
        if matches!(self.pair, OrbProgram::Other(_)) {
            bail!("skipped: only the ends of omniORB can run under a tool");
        }
        let launch =
            &self.open.iter().find(|end| end.transport == transport).context("the transport is not available")?.launch;
        let behind = |tool: &[W], verb: &[&str], endpoint| -> Vec<String> {
            let words = self.pair.words(verb, self.variant.options, endpoint).into_iter().map(str::to_owned);
            tool.iter().map(|word| word.as_ref().to_owned()).chain(words).collect()
        };
        let environment = [&launch.environment(), more].concat();
        let words = behind(server.as_ref(), &["serve"], Some(&launch.endpoint));
        let server = self.sandbox.server_with(launch.mode, &words, &environment, Ready::Says("object "))?;
        let words = behind(caller.as_ref(), &["call", &server.said("object")?], None);
        let setup = Setup { mode: launch.mode, placement: Two };
        let reported = self.sandbox.caller_with(setup, &words, &environment)?.line(question)?;
        server.end();
        Ok(reported)
    }

    /// Sends every question to a caller in every place, in turn with `others` in each repetition. An error over kernel TCP is an error.
    /// Over another transport it goes to standard error, and that caller has no further values.
    pub fn compare(
        &self,
        (repetitions, fast): (usize, bool),
        places: Vec<Place>,
        questions: &[String],
        others: Vec<Measurement<'_>>,
    ) -> Result<Answers> {
        let none = || vec![Vec::new(); questions.len()];
        let callers: Result<Vec<_>> =
            places.iter().map(|&place| Ok((place, RefCell::new((Some(self.caller(place)?), none()))))).collect();
        let callers = callers?;
        let mut measurements: Vec<Measurement<'_>> = Vec::new();
        for ((transport, _), state) in &callers {
            for (at, question) in questions.iter().enumerate() {
                measurements.push(Box::new(move |_| {
                    let (caller, p99) = &mut *state.borrow_mut();
                    let reported =
                        caller.as_mut().map(|caller| caller.line(question).and_then(|line| figures::parse(&line)));
                    let reported = match reported {
                        Some(Err(error)) if *transport == Transport::Tcp => return Err(error),
                        Some(Err(error)) => {
                            eprintln!("{}, `{question}`: {error:#}", transport.name());
                            *caller = None;
                            None
                        }
                        Some(Ok(reported)) => Some(reported),
                        None => None,
                    };
                    p99[at].push(reported.map_or(f64::NAN, |reported| reported.p99));
                    Ok(reported.map_or(f64::NAN, |reported| reported.median))
                }));
            }
        }
        measurements.extend(others);
        let mut series = self.sandbox.bench.compare(repetitions, fast, &mut measurements)?;
        drop(measurements);
        let others = series.split_off(callers.len() * questions.len());
        let mut series = series.into_iter();
        let answers = callers.into_iter().map(|(_, state)| {
            let all = state.into_inner().1.into_iter();
            all.zip(&mut series).map(|(p99, median)| Answer { median, p99 }).collect()
        });
        Ok(Answers { answers: answers.collect(), places, others })
    }
}

/// Builds the program for omniORB.
fn compiled(sandbox: &Sandbox<'_>) -> Result<String> {
    for program in ["omniidl", "c++"] {
        find(program).with_context(|| format!("skipped: {program} is not installed"))?;
    }
    if !std::path::Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        bail!("skipped: libomniorb4-dev is not installed");
    }
    for (name, text) in SOURCES {
        sandbox.file(name, text)?;
    }
    for step in builds::omniorb(sandbox.path("").trim_end_matches('/'), "corba") {
        sandbox.build(&step)?;
    }
    Ok(sandbox.path("corba"))
}

impl Answers {
    /// The answers to question `at` in this place.
    pub fn of(&self, (transport, placement): Place, at: usize) -> Option<&Answer> {
        let place = self.places.iter().position(|&(p, on)| p == transport && on == placement)?;
        let answer = self.answers[place].get(at)?;
        answer.median.values.iter().any(|value| value.is_finite()).then_some(answer)
    }

    /// The placement in which question `at` took less time.
    pub fn better(&self, transport: Transport, at: usize) -> Option<Placement> {
        let (one, two) = (self.of((transport, One), at)?, self.of((transport, Two), at)?);
        Some(if better(&one.median, &two.median).1 == "one CPU" { One } else { Two })
    }
}

/// The name of a placement in a figure.
pub fn on(placement: Placement) -> &'static str {
    if placement == One { "one CPU" } else { "two CPUs" }
}
