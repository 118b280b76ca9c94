//! The program from its start to its exit code.

use std::io::{Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::Result;
use clap::FromArgMatches;

use crate::cli::{self, Cli, Command};
use crate::commands;
use crate::failure::{at_address, exit_code, message, output_error, usage};
use crate::settings::Settings;
#[cfg(unix)]
use crate::signals;
use crate::{
    allocator, driver_cache, habits, interrupt, log, terminal, terminal::output, terminal::screen,
    traces,
};

/// The exit code after a bug in trine, the same as that of other Rust programs.
const PANICKED: u8 = 101;
/// The exit code for a command line that cannot be understood.
const MISUNDERSTOOD: u8 = 2;

/// Runs the command line. Every regular exit of the program goes through this function.
pub(crate) fn main() -> ExitCode {
    // First: it changes the environment, which no thread may read meanwhile.
    let full = driver_cache::avoid_full_disk();
    report_panics();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let typed: Vec<_> = std::env::args_os().skip(1).collect();
        if typed.is_empty() {
            return commands::welcome::run().map(|()| ExitCode::SUCCESS);
        }
        let settings = Settings::read();
        // Help and mistakes on the command line are reported before errors in the settings file.
        let command = match &settings {
            Ok(settings) => settings.fill(cli::command()),
            Err(_) => cli::command(),
        };
        let meant = habits::understood(typed, &command);
        let matches = command.try_get_matches_from([&["trine".into()], &meant[..]].concat());
        let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => cli,
            Err(mut told) => {
                habits::correct(&mut told, &meant);
                return tell(&told);
            }
        };
        let settings = match (settings, &cli.command) {
            (Ok(settings), _) => settings,
            (Err(_), Command::Completions(_)) => Settings::default(),
            (Err(error), _) => return Err(error),
        };
        let collector = match &cli.command {
            Command::Serve(args) => traces::collector(args.otlp_endpoint.as_ref())?,
            _ => None,
        };
        let is_server = matches!(cli.command, Command::Serve(_));
        if is_server {
            allocator::give_memory_back();
        }
        let _log = log::start(cli.verbose, is_server, collector.as_ref())?;
        if let Some(folder) = full {
            tracing::info!(folder = %folder.display(),
                "Mesa's drivers keep no kernels, for lack of disk space");
        }
        interrupt::install();
        #[cfg(unix)]
        signals::let_long_files_fail();
        run(cli, &settings).map(|()| ExitCode::SUCCESS)
    }));
    match outcome {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            if let Some(message) = message(&error) {
                output::error(terminal::harmless(&message));
            }
            ExitCode::from(exit_code(&error))
        }
        Err(_) => ExitCode::from(PANICKED),
    }
}

/// Prints the help, the version, or the problem with the command line.
fn tell(told: &clap::Error) -> Result<ExitCode> {
    if told.use_stderr() {
        // It has words of the command line, which may be names of files.
        let text = told.render().to_string();
        let text = text.trim_end_matches('\n');
        match text.strip_prefix("error:") {
            Some(rest) => output::remark(format_args!(
                "{}{}",
                terminal::on_stderr("error:", terminal::ERROR),
                terminal::harmless(rest)
            )),
            None => output::remark(terminal::harmless(text)),
        }
        return Ok(ExitCode::from(MISUNDERSTOOD));
    }
    #[expect(clippy::disallowed_methods, reason = "flushes help, which is this program's own text")]
    let printed = told.print().and_then(|()| stdout().flush());
    // The user asked for this text, so a failure to write it is an error.
    printed.map_err(output_error)?;
    Ok(ExitCode::SUCCESS)
}

fn run(mut cli: Cli, set: &Settings) -> Result<()> {
    let early = std::mem::take(&mut cli.placement);
    match cli.command.placement_mut() {
        (_, Some(placement)) => placement.or(early),
        (name, None) => {
            if let Some(option) = early.first_given() {
                return Err(usage(format!(
                    "{option} has no meaning before `{name}`; leave it out, or see `trine {name} \
                     --help`"
                )));
            }
        }
    }
    let verbose = cli.verbose > 0;
    match cli.command {
        Command::Run(args) => commands::run::run(set, args, verbose),
        Command::Serve(args) => commands::serve::run(set, args, verbose),
        Command::Top(args) => commands::top::run(args),
        Command::Ps(args) => commands::servers::ps(args),
        Command::Stop(args) => commands::servers::stop(args),
        Command::Config(args) => commands::config::run(set, args),
        Command::Bench(args) => commands::bench::run(set, args, verbose),
        Command::Eval(args) => commands::eval::run(set, args, verbose),
        Command::Explain(args) => commands::explain::run(set, args),
        Command::Plan(args) => commands::plan::run(set, args),
        Command::Quantize(args) => commands::quantize::run(set, args),
        Command::Pull(args) => commands::store::pull(&set.library, args),
        Command::Search(args) => commands::search::run(set, args, verbose),
        Command::Create(args) => commands::create::run(set, args),
        Command::Cp(args) => commands::create::copy(set, args),
        Command::List(args) => commands::store::list(&set.library, args),
        Command::Rm(args) => commands::store::remove(&set.library, args),
        Command::Show(args) => commands::show::run(set, args),
        Command::Doctor(args) => commands::doctor::run(&set.library, args),
        Command::Npu(args) => commands::npu::run(&set.library, args),
        Command::Logits(args) if args.image.is_empty() => commands::logits::run(set, args, verbose),
        Command::Logits(args) => commands::logits::pictures::run(set, &args, verbose),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args),
    }
}

/// Makes panics, which are bugs, report themselves and what would help to fix them.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        screen::leave();
        let place =
            panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let what = panic
            .payload()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.payload().downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        output::error(format_args!(
            "trine has a bug and must stop: {} (at {place}, version {}). Please report this{} with \
             the command line and, if you can, the model's name",
            terminal::harmless(&what),
            env!("CARGO_PKG_VERSION"),
            at_address(),
        ));
    }));
}
