//! What the parsed commands of a line amount to: one asynchronous command alone, or some among others, or none.

use brush_parser::ast::{
    AndOrList, Command, CompoundCommand, CompoundList, CompoundListItem, Pipeline, Program, SeparatorOperator,
};

use crate::reading::Why;

/// What one reading of a line by one grammar comes to.
#[derive(Debug)]
pub(crate) enum Judgement<'a> {
    Plain,
    /// One command and no other, asynchronous.
    Alone(&'a AndOrList),
    Held(Why),
}

/// Judges a whole line. Substitutions are not looked into: the scanner has already said what is in them.
pub(crate) fn judge(program: &Program) -> Judgement<'_> {
    let items: Vec<&CompoundListItem> = items(program).collect();
    let inside = items.iter().find_map(|item| in_list(&item.0));
    let asynchronous = items.iter().any(|item| is_asynchronous(item));
    match (inside, items.as_slice()) {
        (Some(Why::Coprocess), _) => Judgement::Held(Why::Coprocess),
        (_, [only]) if asynchronous => Judgement::Alone(&only.0),
        _ if asynchronous => Judgement::Held(Why::AmongOthers),
        (Some(why), _) => Judgement::Held(why),
        (None, _) => Judgement::Plain,
    }
}

/// Whether the line is the given command and nothing else, and waits for it. Places count too, since a changed line
/// has everything where it was.
pub(crate) fn is_alone_and_awaited(program: &Program, command: &AndOrList) -> bool {
    let items: Vec<&CompoundListItem> = items(program).collect();
    matches!(items.as_slice(), [only] if !is_asynchronous(only) && format!("{:?}", only.0) == format!("{command:?}"))
}

fn items(program: &Program) -> impl Iterator<Item = &CompoundListItem> {
    program.complete_commands.iter().flat_map(|list| &list.0)
}

fn is_asynchronous(item: &CompoundListItem) -> bool {
    matches!(item.1, SeparatorOperator::Async)
}

fn in_list(list: &AndOrList) -> Option<Why> {
    list.iter().find_map(|(_, pipeline)| in_pipeline(pipeline))
}

fn in_pipeline(pipeline: &Pipeline) -> Option<Why> {
    pipeline.seq.iter().find_map(|command| match command {
        Command::Simple(_) | Command::ExtendedTest(..) => None,
        Command::Compound(compound, _) => in_compound(compound),
        Command::Function(function) => in_compound(&function.body.0).map(|why| match why {
            Why::Coprocess => why,
            _ => Why::InFunction,
        }),
    })
}

fn in_compound(compound: &CompoundCommand) -> Option<Why> {
    match compound {
        CompoundCommand::Arithmetic(_) => None,
        CompoundCommand::Coprocess(_) => Some(Why::Coprocess),
        CompoundCommand::BraceGroup(group) => in_lists([&group.list], Why::InGroup),
        CompoundCommand::Subshell(group) => in_lists([&group.list], Why::InGroup),
        CompoundCommand::ArithmeticForClause(each) => in_lists([&each.body.list], Why::InCompound),
        CompoundCommand::ForClause(each) => in_lists([&each.body.list], Why::InCompound),
        CompoundCommand::CaseClause(case) => {
            in_lists(case.cases.iter().filter_map(|item| item.cmd.as_ref()), Why::InCompound)
        }
        CompoundCommand::WhileClause(each) | CompoundCommand::UntilClause(each) => {
            in_lists([&each.0, &each.1.list], Why::InCompound)
        }
        CompoundCommand::IfClause(choice) => {
            let elses = choice.elses.iter().flatten();
            let others = elses.flat_map(|part| part.condition.iter().chain([&part.body]));
            in_lists([&choice.condition, &choice.then].into_iter().chain(others), Why::InCompound)
        }
    }
}

/// Something asynchronous in these lists themselves is `here`; deeper down it may be something else.
fn in_lists<'a>(lists: impl IntoIterator<Item = &'a CompoundList>, here: Why) -> Option<Why> {
    let mut found = None;
    for item in lists.into_iter().flat_map(|list| &list.0) {
        match in_list(&item.0) {
            Some(Why::Coprocess) => return Some(Why::Coprocess),
            deeper => found = found.or(deeper),
        }
        if is_asynchronous(item) {
            found = found.or(Some(here));
        }
    }
    found
}
