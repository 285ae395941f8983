//! Options that `motet bench` and its tools share, and the choice of parts of a tool.

use clap::ValueEnum;
use std::path::PathBuf;

/// How to measure and what to print: options of `motet bench` and of its tools.
#[derive(Debug, Default, clap::Args)]
pub struct RunOptions {
    /// A short run: fewer and shorter repetitions
    #[arg(long)]
    pub quick: bool,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the table as Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Folder for the plots, as SVG and PNG
    #[arg(long, value_name = "DIR", default_value = "report/bench")]
    pub plots: PathBuf,
    /// Folder for the tables as Markdown pages, one for each group of rows that is measured
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Repetitions of each measurement (at least 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(5..))]
    pub repetitions: Option<u16>,
    /// Folder of libmotet.so.0 and libmotet_sockets.so
    #[arg(long, value_name = "DIR")]
    pub libdir: Option<PathBuf>,
}

/// The command line of a tool that measures in parts.
#[derive(Debug, clap::Args)]
pub struct PartOptions<P: ValueEnum + Send + Sync + 'static> {
    /// How to measure and what to print
    #[command(flatten)]
    pub run: RunOptions,
    /// Only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub parts: Vec<P>,
}

impl<P: ValueEnum + Send + Sync + PartialEq + 'static> PartOptions<P> {
    /// The parts that are named, in their own order; all when none is named.
    pub fn chosen(&self) -> Vec<P> {
        let all = P::value_variants().iter();
        all.filter(|part| self.parts.is_empty() || self.parts.contains(part)).cloned().collect()
    }
}
