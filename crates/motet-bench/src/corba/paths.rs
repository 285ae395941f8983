//! The paths that calls take: a server for each of them, which stays, and callers in any placement.

use super::figures;
use crate::bench::{Contestant, Series};
use crate::place::Placement::{self, One, Two};
use crate::report::WithMotet;
use crate::rows::better;
use crate::stage::{Caller, Mode, Ready, Server, Stage, Way};
use anyhow::{Context, Result, bail};
use motet_programs::{builds, find};
use std::cell::RefCell;

const SOURCES: [(&str, &str); 3] = [
    ("corba.idl", include_str!("../../../../tests/bench/corba.idl")),
    ("corba.cc", include_str!("../../../../tests/bench/corba.cc")),
    ("corba_data.h", include_str!("../../../../tests/bench/corba_data.h")),
];
/// The omniORB adapter for omniORB 4.2, and the object that is preloaded to bring it in.
const ADAPTER: &str = "libmotet_omniorb42.so";
const ADAPTER_SHIM: &str = "libmotet_omniorb.so";
/// Room for the largest data with their headers; omniORB's own limit is 2 MiB.
const LARGEST_MESSAGE: &str = "134217728";

/// How two ends of CORBA calls reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// omniORB as it is.
    Tcp,
    /// Its own transport over Unix sockets.
    Unix,
    /// Its TCP, carried by the sockets adapter.
    Sockets,
    /// The omniORB adapter.
    Corba,
}

impl Path {
    /// Those of Motet.
    pub const ADAPTERS: [Path; 2] = [Path::Sockets, Path::Corba];
    /// All, in the order in which they are shown.
    pub const ALL: [Path; 4] = [Path::Tcp, Path::Unix, Path::Sockets, Path::Corba];

    /// Which quantities of a line about this path alone are measured with Motet.
    pub fn with_motet(self) -> WithMotet {
        if Self::ADAPTERS.contains(&self) { WithMotet::Figure } else { WithMotet::Neither }
    }

    /// As a reader knows it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Tcp => "kernel TCP",
            Path::Unix => "omniORB's unix transport",
            Path::Sockets => "sockets adapter",
            Path::Corba => "omniORB adapter",
        }
    }
}

/// What both ends of a path are given.
struct Kit {
    mode: Mode,
    environment: Vec<(String, String)>,
    endpoint: String,
}

impl Kit {
    /// The one place that knows what makes a path.
    fn of(path: Path, stage: &Stage<'_>) -> Result<Self> {
        let tcp = Kit { mode: Mode::WithoutMotet, environment: Vec::new(), endpoint: "giop:tcp:127.0.0.1:".to_owned() };
        Ok(match path {
            Path::Tcp => tcp,
            Path::Unix => Kit { endpoint: format!("giop:unix:{}", stage.path("corba.socket")), ..tcp },
            Path::Sockets => Kit { mode: Mode::Motet, ..tcp },
            Path::Corba => {
                stage.readable(&stage.bench.find(ADAPTER)?)?; // the object that is preloaded looks for it beside itself
                let shim = stage.readable(&stage.bench.find(ADAPTER_SHIM)?)?;
                // Behind the sockets adapter, as under `motet run`: that one then carries what is not the ORB's.
                let preloaded = ("LD_PRELOAD".to_owned(), shim.to_string_lossy().into_owned());
                Kit { mode: Mode::Motet, environment: vec![preloaded], ..tcp }
            }
        })
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

struct End {
    path: Path,
    kit: Kit,
    uri: String,
    _server: Server,
}

/// How the ends of a measurement differ from the usual ones.
#[derive(Debug, Clone, Copy)]
pub struct Variant<'v> {
    /// Options of omniORB's, for both ends. Another ORB's pair has no variants.
    pub options: &'v [&'v str],
    /// For both ends, too.
    pub environment: &'v [(&'v str, &'v str)],
    /// Paths that take part.
    pub paths: &'v [Path],
}

impl Variant<'_> {
    /// What everybody gets.
    pub const USUAL: Self = Self { options: &[], environment: &[], paths: &Path::ALL };
}

/// Whose ends are measured.
pub enum Pair {
    /// omniORB's, `tests/bench/corba.cc`, which takes the ORB's options.
    Own(String),
    /// Somebody else's: the words to which `serve` and `call` are added.
    Other(Vec<String>),
}

impl Pair {
    /// `pair`, or the program for omniORB, which is built.
    pub fn of(stage: &Stage<'_>, pair: Option<&str>) -> Result<Self> {
        Ok(match pair {
            Some(words) => Pair::Other(words.split_whitespace().map(str::to_owned).collect()),
            None => Pair::Own(compiled(stage)?),
        })
    }

    /// Whether it is omniORB, whose options are known.
    pub fn is_own(&self) -> bool {
        matches!(self, Pair::Own(_))
    }

    /// The words that start an end.
    fn words<'w>(&'w self, verb: &[&'w str], options: &[&'w str], endpoint: Option<&'w str>) -> Vec<&'w str> {
        match self {
            Pair::Own(program) => {
                let mut words = [&[program.as_str()], verb, &["-ORBgiopMaxMsgSize", LARGEST_MESSAGE], options].concat();
                words.extend(endpoint.into_iter().flat_map(|endpoint| ["-ORBendPoint", endpoint]));
                words
            }
            Pair::Other(words) => words.iter().map(String::as_str).chain(verb.iter().copied()).collect(),
        }
    }
}

/// The servers of all paths that there are.
pub struct Ends<'a> {
    /// Where they run.
    pub stage: &'a Stage<'a>,
    pair: &'a Pair,
    variant: Variant<'a>,
    open: Vec<End>,
    missing: Vec<(Path, String)>,
}

/// A path, and where its ends run.
pub type Place = (Path, Placement);

/// What one place answered to one question.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The medians, with the floors around.
    pub median: Series,
    /// The 99th percentiles of the same repetitions.
    pub p99: Vec<f64>,
}

/// All answers of a contest, and what else took part.
pub struct Answers {
    places: Vec<Place>,
    /// By place, then by question.
    answers: Vec<Vec<Answer>>,
    /// The other contestants, in their order.
    pub others: Vec<Series>,
}

impl<'a> Ends<'a> {
    /// Starts the servers.
    pub fn open(stage: &'a Stage<'a>, pair: &'a Pair, variant: Variant<'a>) -> Result<Self> {
        let mut ends = Self { stage, pair, variant, open: Vec::new(), missing: Vec::new() };
        for &path in variant.paths {
            match ends.serve(path) {
                Ok(end) => ends.open.push(end),
                Err(error) if path == Path::Tcp => return Err(error),
                Err(error) => ends.missing.push((path, format!("{error:#}"))),
            }
        }
        Ok(ends)
    }

    fn serve(&self, path: Path) -> Result<End> {
        if path == Path::Unix && !self.pair.is_own() {
            bail!("this transport is omniORB's");
        }
        let mut kit = Kit::of(path, self.stage)?;
        let given = self.variant.environment.iter();
        kit.environment.extend(given.map(|&(name, value)| (name.to_owned(), value.to_owned())));
        let words = self.pair.words(&["serve"], self.variant.options, Some(&kit.endpoint));
        let server = self.stage.server_with(kit.mode, &words, &kit.environment(), Ready::Says("object "))?;
        Ok(End { path, uri: server.said("object")?, kit, _server: server })
    }

    /// Why there is no such path; `None` when there is.
    pub fn missing(&self, path: Path) -> Option<&str> {
        self.missing.iter().find(|(of, _)| *of == path).map(|(_, why)| why.as_str())
    }

    /// The paths that there are: each with the ends on one CPU and on two where `adapters_too`, else the adapters on two alone.
    pub fn places(&self, adapters_too: bool) -> Vec<Place> {
        let both = |path: &Path| adapters_too || !Path::ADAPTERS.contains(path);
        let of =
            |path: Path| [Two, One].into_iter().filter(move |&on| on == Two || both(&path)).map(move |on| (path, on));
        self.open.iter().flat_map(|end| of(end.path)).collect()
    }

    /// Starts a caller.
    pub fn caller(&self, (path, placement): Place) -> Result<Caller> {
        let end = self.open.iter().find(|end| end.path == path).context("no such path")?;
        let words = self.pair.words(&["call", &end.uri], self.variant.options, None);
        self.stage.caller_with(Way { mode: end.kit.mode, placement }, &words, &end.kit.environment())
    }

    /// Runs a caller and a server of its own, on two CPUs, each behind the words of a tool, with further environment; what the caller
    /// answers to one question. Both have ended then.
    pub fn under<W: AsRef<str>>(
        &self,
        path: Path,
        [caller, server]: &[impl AsRef<[W]>; 2],
        more: &[(&str, &str)],
        question: &str,
    ) -> Result<String> {
        if matches!(self.pair, Pair::Other(_)) {
            bail!("skipped: only omniORB's ends can be looked at");
        }
        let kit = &self.open.iter().find(|end| end.path == path).context("no such path")?.kit;
        let behind = |tool: &[W], verb: &[&str], endpoint| -> Vec<String> {
            let words = self.pair.words(verb, self.variant.options, endpoint).into_iter().map(str::to_owned);
            tool.iter().map(|word| word.as_ref().to_owned()).chain(words).collect()
        };
        let environment = [&kit.environment(), more].concat();
        let words = behind(server.as_ref(), &["serve"], Some(&kit.endpoint));
        let server = self.stage.server_with(kit.mode, &words, &environment, Ready::Says("object "))?;
        let words = behind(caller.as_ref(), &["call", &server.said("object")?], None);
        let way = Way { mode: kit.mode, placement: Two };
        let told = self.stage.caller_with(way, &words, &environment)?.line(question)?;
        server.end();
        Ok(told)
    }

    /// Asks a caller in every place every question, all in turn with `others` in each of the repetitions. Kernel TCP must answer;
    /// a caller on another path that fails has no further values, and says why on standard error.
    pub fn contest(
        &self,
        (repetitions, fast): (usize, bool),
        places: Vec<Place>,
        questions: &[String],
        others: Vec<Contestant<'_>>,
    ) -> Result<Answers> {
        let none = || vec![Vec::new(); questions.len()];
        let callers: Result<Vec<_>> =
            places.iter().map(|&place| Ok((place, RefCell::new((Some(self.caller(place)?), none()))))).collect();
        let callers = callers?;
        let mut contestants: Vec<Contestant<'_>> = Vec::new();
        for ((path, _), state) in &callers {
            for (at, question) in questions.iter().enumerate() {
                contestants.push(Box::new(move |_| {
                    let (caller, p99) = &mut *state.borrow_mut();
                    let told =
                        caller.as_mut().map(|caller| caller.line(question).and_then(|line| figures::parse(&line)));
                    let told = match told {
                        Some(Err(error)) if *path == Path::Tcp => return Err(error),
                        Some(Err(error)) => {
                            eprintln!("{}, `{question}`: {error:#}", path.name());
                            *caller = None;
                            None
                        }
                        Some(Ok(told)) => Some(told),
                        None => None,
                    };
                    p99[at].push(told.map_or(f64::NAN, |told| told.p99));
                    Ok(told.map_or(f64::NAN, |told| told.median))
                }));
            }
        }
        contestants.extend(others);
        let mut series = self.stage.bench.contest(repetitions, fast, &mut contestants)?;
        drop(contestants);
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
fn compiled(stage: &Stage<'_>) -> Result<String> {
    for program in ["omniidl", "c++"] {
        find(program).with_context(|| format!("skipped: {program} is not installed"))?;
    }
    if !std::path::Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        bail!("skipped: libomniorb4-dev is not installed");
    }
    for (name, text) in SOURCES {
        stage.file(name, text)?;
    }
    for step in builds::omniorb(stage.path("").trim_end_matches('/'), "corba") {
        stage.build(&step)?;
    }
    Ok(stage.path("corba"))
}

impl Answers {
    /// What was answered to question `at` on this path in this placement.
    pub fn of(&self, (path, placement): Place, at: usize) -> Option<&Answer> {
        let place = self.places.iter().position(|&(p, on)| p == path && on == placement)?;
        let answer = self.answers[place].get(at)?;
        answer.median.values.iter().any(|value| value.is_finite()).then_some(answer)
    }

    /// Where the answer to question `at` took less time: a path of the kernel's counts with its better placement.
    pub fn better(&self, path: Path, at: usize) -> Option<Placement> {
        let (one, two) = (self.of((path, One), at)?, self.of((path, Two), at)?);
        Some(if better(&one.median, &two.median).1 == "one CPU" { One } else { Two })
    }
}

/// The name of a placement in a figure.
pub fn on(placement: Placement) -> &'static str {
    if placement == One { "one CPU" } else { "two CPUs" }
}
