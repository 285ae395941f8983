//! `motet generate`: manual pages and shell completions, from the definition of the command line and the settings table.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use motet_config::{SETTINGS, VARIABLES};

use crate::exit_error::{CODES, FAILED, Failure, Outcome};

/// Write manual pages or shell completions into a folder
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Manual pages: motet.1, one for each subcommand, and one for each of their subcommands
    Man {
        /// Where to write them
        folder: PathBuf,
    },
    /// Completions for bash, zsh and fish
    Completions {
        /// Where to write them
        folder: PathBuf,
    },
}

/// The command.
pub fn run(arguments: &Arguments, command: Command) -> Outcome {
    let (folder, result) = match &arguments.what {
        What::Man { folder } => (folder, manual(folder, command)),
        What::Completions { folder } => (folder, completions(folder, command)),
    };
    result.map_err(|e| Failure::new(FAILED, format!("cannot write to {}: {e}", folder.display())))?;
    Ok(0)
}

/// The subcommands for users, without the hidden ones.
fn visible(command: &Command) -> Vec<Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect()
}

fn completions(folder: &Path, command: Command) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut shown = Command::new("motet").version(env!("CARGO_PKG_VERSION"));
    shown = shown.args(command.get_arguments().cloned()).subcommands(visible(&command)).disable_help_subcommand(true);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown, "motet", folder)?;
    }
    Ok(())
}

fn manual(folder: &Path, mut command: Command) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    command.build();
    pages(folder, "motet", &command)?;
    write(&folder.join("motet.1"), Man::new(command.after_help("")), true, true)
}

/// Writes one page for each subcommand of the command called `of`, and for their subcommands.
fn pages(folder: &Path, of: &str, command: &Command) -> std::io::Result<()> {
    for sub in visible(command) {
        let name = format!("{of}-{}", sub.get_name());
        pages(folder, &name, &sub)?;
        let (page, subcommands) = (folder.join(format!("{name}.1")), sub.has_subcommands());
        write(&page, Man::new(sub.display_name(name.clone()).after_help("")).title(name), subcommands, false)?;
    }
    Ok(())
}

fn write(path: &Path, man: Man, subcommands: bool, whole: bool) -> std::io::Result<()> {
    let man = man.source(concat!("motet ", env!("CARGO_PKG_VERSION"))).manual("Motet");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    if whole {
        environment().to_writer(&mut page)?;
        files().to_writer(&mut page)?;
    }
    exit_status().to_writer(&mut page)?;
    fs::write(path, page)
}

fn environment() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["ENVIRONMENT"]);
    for setting in SETTINGS {
        page.control("TP", []);
        page.text([bold(setting.env)]);
        page.text([roman(setting.help.replace('`', ""))]);
        page.control("br", []);
        let default = if setting.default.is_empty() { "empty" } else { setting.default };
        page.text([
            roman(format!("{}; default {default}. In the file: ", setting.kind.describe())),
            italic(setting.name),
        ]);
    }
    for variable in VARIABLES {
        page.control("TP", []);
        page.text([bold(variable.env)]);
        page.text([roman(variable.help.replace('`', ""))]);
    }
    page
}

fn files() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["FILES"]);
    page.text([roman(
        "Settings are read from the first of these files that exists; environment variables override it.",
    )]);
    for (name, help) in [
        ("$MOTET_CONFIG", "if set"),
        ("$XDG_CONFIG_HOME/motet.toml, ~/.config/motet.toml", "the file of the user"),
        ("/etc/motet.toml", "the file of the machine"),
    ] {
        page.control("TP", []);
        page.text([italic(name)]);
        page.text([roman(help)]);
    }
    page.control("PP", []);
    page.text([roman(
        "The profile is the first of these files that was measured on this machine; settings override it.",
    )]);
    for (name, help) in [
        ("$MOTET_PROFILE", "if set"),
        ("$XDG_CACHE_HOME/motet/profile.toml, ~/.cache/motet/profile.toml", "the profile of the user"),
        (motet_config::profile::SYSTEM_PROFILE_PATH, "the profile of root, for every user"),
    ] {
        page.control("TP", []);
        page.text([italic(name)]);
        page.text([roman(help)]);
    }
    page
}

fn exit_status() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in CODES {
        page.control("TP", []);
        page.text([bold(*code)]);
        page.text([roman(meaning.replace('`', ""))]);
    }
    page
}
