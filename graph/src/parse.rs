//! Reads the text form of a graph back: the inverse of [`crate::dump`].
//!
//! `parse(&graph.to_string())` is `graph`. Text written by hand may leave out what a test does not
//! need: sources of weights, `@dN`, names of nodes, and all of the header after the stage. Its
//! result numbers are names only; they become ids where the order of the rows allows it.

mod cursor;
mod error;

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;

use crate::dump::HEADER;
use crate::graph::{
    Graph, GraphBuilder, StateDef, StateKind, TensorSlice, Transform, WeightDef, WeightSource,
};
use crate::graph::{Part, Window, WindowKind};
use crate::op::Op;
use crate::table::{DeviceId, Id, StateId, ValueId};
use crate::types::{DType, TensorType};
use cursor::{Cursor, unescape};

pub use error::{ParseError, ParseFault};

/// Reads a graph from its text form.
///
/// Each node is checked by the rules of its op; what [`crate::verify`] checks beyond that is not
/// checked here.
///
/// # Errors
/// The first line that is malformed, reads what is not defined before it, or states other result
/// types than the op gives.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (number, first) = lines.next().unwrap_or((1, ""));
    let mut parser = header(first).map_err(|fault| ParseError { line: number, fault })?;
    for (number, line) in lines {
        let mut cursor = Cursor::new(line);
        if !cursor.at_end() {
            parser.row(&mut cursor).map_err(|fault| ParseError { line: number, fault })?;
        }
    }
    while parser.push_declared() {}
    Ok(parser.builder.finish())
}

/// `; strata graph 1 | MODEL | KIND ROWS (logits ROWS) | STAGE`; counts after it are not read.
fn header(line: &str) -> Result<Parser, ParseFault> {
    let need = "`; strata graph 1 | MODEL | verify ROWS (logits ROWS) | STAGE`";
    let malformed = || ParseFault::expected(line, need);
    let rest = line.strip_prefix(HEADER).ok_or_else(malformed)?;
    let fields: Vec<&str> = rest.split('|').collect();
    let [before, model, window, stage, ..] = fields[..] else { return Err(malformed()) };
    if !before.trim().is_empty() {
        return Err(malformed());
    }
    let plain = |field: &str| {
        let field = field.strip_prefix(' ').unwrap_or(field);
        unescape(field.strip_suffix(' ').unwrap_or(field)).ok_or_else(malformed)
    };
    let mut cursor = Cursor::new(window);
    let kind = match cursor.word() {
        Some("verify") => WindowKind::Verify,
        Some("prefill") => WindowKind::Prefill,
        Some("draft") => WindowKind::Draft,
        _ => return Err(malformed()),
    };
    let rows = cursor.number("the number of rows")?;
    let mut logit_rows = rows;
    if cursor.eat("(logits") {
        logit_rows = cursor.number("the number of logit rows")?;
        cursor.expect(")", "`)`")?;
    }
    cursor.end()?;
    let window = Window { kind, rows, logit_rows };
    Ok(Parser::new(GraphBuilder::new(plain(model)?, window, plain(stage)?)))
}

enum Declared {
    Weight(WeightDef),
    State(StateDef),
}

/// A graph in the making.
///
/// A declaration becomes a value when a result's number shows that it must come before it, or when
/// it is read; so the ids of a dump are those of the graph that it was made from.
struct Parser {
    builder: GraphBuilder,
    declared: VecDeque<Declared>,
    declared_weights: u32,
    declared_states: u32,
    weights: Vec<ValueId>,
    states: Vec<ValueId>,
    results: BTreeMap<u32, ValueId>,
    value_count: u32,
}

impl Parser {
    fn new(builder: GraphBuilder) -> Self {
        Self {
            builder,
            declared: VecDeque::new(),
            declared_weights: 0,
            declared_states: 0,
            weights: Vec::new(),
            states: Vec::new(),
            results: BTreeMap::new(),
            value_count: 0,
        }
    }

    /// Makes the next declaration a value.
    fn push_declared(&mut self) -> bool {
        match self.declared.pop_front() {
            Some(Declared::Weight(def)) => self.weights.push(self.builder.weight(def)),
            Some(Declared::State(def)) => self.states.push(self.builder.state(def)),
            None => return false,
        }
        self.value_count += 1;
        true
    }

    fn row(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseFault> {
        if cursor.starts_with("%") {
            self.node(cursor)?;
        } else {
            match cursor.word() {
                Some("output") => self.outputs(cursor)?,
                Some(name) => self.declaration(name, cursor)?,
                None => return Err(cursor.expected("a weight, a state, a node or `output`")),
            }
        }
        cursor.end()
    }

    fn outputs(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseFault> {
        loop {
            let value = self.operand(cursor)?;
            self.builder.output(value);
            if !cursor.eat(",") {
                return Ok(());
            }
        }
    }

    fn declaration(&mut self, name: &str, cursor: &mut Cursor<'_>) -> Result<(), ParseFault> {
        cursor.expect("=", "`=`")?;
        let (need, declared) = match cursor.word() {
            Some("weight") => {
                self.declared_weights += 1;
                (format!("w{}", self.declared_weights - 1), Declared::Weight(weight(cursor)?))
            }
            Some("state") => {
                self.declared_states += 1;
                (format!("s{}", self.declared_states - 1), Declared::State(state(cursor)?))
            }
            _ => return Err(cursor.expected("`weight` or `state`")),
        };
        if name != need {
            return Err(ParseFault::Number { found: name.into(), need });
        }
        self.declared.push_back(declared);
        Ok(())
    }

    /// The value called `%N`, `wN` or `sN`.
    fn operand(&mut self, cursor: &mut Cursor<'_>) -> Result<ValueId, ParseFault> {
        let need = "an operand: `%N`, `wN` or `sN`";
        let prefix = ["%", "w", "s"].into_iter().find(|prefix| cursor.eat(prefix));
        let Some(prefix) = prefix else { return Err(cursor.expected(need)) };
        let number: u32 = cursor.number(need)?;
        let undefined = || ParseFault::Undefined { value: format!("{prefix}{number}") };
        let index = number as usize;
        match prefix {
            "w" if number < self.declared_weights => {
                while self.weights.len() <= index && self.push_declared() {}
                self.weights.get(index).copied().ok_or_else(undefined)
            }
            "s" if number < self.declared_states => {
                while self.states.len() <= index && self.push_declared() {}
                self.states.get(index).copied().ok_or_else(undefined)
            }
            "%" => self.results.get(&number).copied().ok_or_else(undefined),
            _ => Err(undefined()),
        }
    }

    /// `%N, .. = op(operands) attribute=value .. : types @dN "name"`
    fn node(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseFault> {
        let results = result_numbers(cursor)?;
        cursor.expect("=", "`=`")?;
        let name = cursor.word().ok_or_else(|| cursor.expected("the name of an op"))?;
        cursor.expect("(", "`(`")?;
        while self.value_count < results[0] && self.push_declared() {}
        let operands = self.operands(cursor)?;
        let op = op(name, cursor)?;
        cursor.expect(":", "`:` and the types of the results")?;
        let types = list(cursor, tensor_type)?;
        let device = device(cursor)?;
        let name = if cursor.starts_with("\"") { cursor.string()? } else { String::new() };
        let values =
            self.builder.push_on(device, op, &operands, name).map_err(ParseFault::Shape)?;
        self.value_count += count(values.len());
        if types.len() != values.len() || results.len() != values.len() {
            let found = if types.len() == values.len() { results.len() } else { types.len() };
            return Err(ParseFault::Results { op: op.name(), found, need: values.len() });
        }
        for ((number, found), value) in results.into_iter().zip(types).zip(values) {
            let need = self.builder.ty(value);
            if found != need {
                return Err(ParseFault::ResultType { value: number, found, need });
            }
            if self.results.insert(number, value).is_some() {
                return Err(ParseFault::Redefined { value: number });
            }
        }
        Ok(())
    }

    fn operands(&mut self, cursor: &mut Cursor<'_>) -> Result<Vec<ValueId>, ParseFault> {
        let mut operands = Vec::new();
        if cursor.eat(")") {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(cursor)?);
            if cursor.eat(")") {
                return Ok(operands);
            }
            cursor.expect(",", "`,` or `)`")?;
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("an op has a handful of results")
}

/// One or more of `item`, between commas.
fn list<'t, T>(
    cursor: &mut Cursor<'t>,
    item: impl Fn(&mut Cursor<'t>) -> Result<T, ParseFault>,
) -> Result<Vec<T>, ParseFault> {
    let mut items = vec![item(cursor)?];
    while cursor.eat(",") {
        items.push(item(cursor)?);
    }
    Ok(items)
}

fn result_numbers(cursor: &mut Cursor<'_>) -> Result<Vec<u32>, ParseFault> {
    list(cursor, |cursor| {
        cursor.expect("%", "a result: `%N`")?;
        cursor.number("a result: `%N`")
    })
}

/// Attributes, and the op that they make of `name`.
fn op(name: &str, cursor: &mut Cursor<'_>) -> Result<Op, ParseFault> {
    let mut attributes: Vec<(&str, &str)> = Vec::new();
    while let Some(key) = cursor.word() {
        cursor.expect("=", "`=` and the value of the attribute")?;
        let value = cursor.word().ok_or_else(|| cursor.expected("the value of the attribute"))?;
        if attributes.iter().any(|&(each, _)| each == key) {
            return Err(ParseFault::expected(key, "each attribute once"));
        }
        attributes.push((key, value));
    }
    let find = |key: &str| attributes.iter().find(|(each, _)| *each == key).map(|&(_, v)| v);
    if !Op::NAMES.contains(&name) {
        return Err(ParseFault::expected(name, "the name of an op"));
    }
    let op = Op::from_text(name, &find).map_err(|at| {
        let attribute = at.strip_prefix("attribute ").unwrap_or(&at).to_owned();
        let found = find(&attribute).map(str::to_owned);
        ParseFault::Attribute { op: name.into(), attribute, found }
    })?;
    let known = op.attributes();
    match attributes.iter().find(|(key, _)| known.iter().all(|(each, _)| each != key)) {
        Some((key, _)) => Err(ParseFault::expected(key, "an attribute of the op")),
        None => Ok(op),
    }
}

fn tensor_type(cursor: &mut Cursor<'_>) -> Result<TensorType, ParseFault> {
    let need = "an element type";
    let name = cursor.word().ok_or_else(|| cursor.expected(need))?;
    let dtype = DType::from_name(name).ok_or_else(|| ParseFault::expected(name, need))?;
    cursor.expect("[", "`[`")?;
    let dims: Vec<u32> = if cursor.starts_with("]") {
        Vec::new()
    } else {
        list(cursor, |cursor| cursor.number("a dimension"))?
    };
    cursor.expect("]", "`]`")?;
    if dims.len() > 4 {
        let found = format!("{} dimensions", dims.len());
        return Err(ParseFault::expected(&found, "at most four dimensions"));
    }
    Ok(TensorType::new(dtype, &dims))
}

fn device(cursor: &mut Cursor<'_>) -> Result<DeviceId, ParseFault> {
    if !cursor.eat("@") {
        return Ok(DeviceId::from_index(0));
    }
    cursor.expect("d", "a device: `@dN`")?;
    // No configuration comes near; the largest u32 would be no row of a table.
    let number: u16 = cursor.number("a device: `@dN`, N below 65536")?;
    Ok(DeviceId::from_index(usize::from(number)))
}

fn weight(cursor: &mut Cursor<'_>) -> Result<WeightDef, ParseFault> {
    let name = cursor.string()?;
    cursor.expect(":", "`:` and the type of the weight")?;
    let ty = tensor_type(cursor)?;
    let mut transform = Transform::None;
    let mut source = WeightSource::Named(Vec::new());
    while let Some(word) = cursor.word() {
        match word {
            "named" => source = WeightSource::Named(list(cursor, slice)?),
            "parts" if cursor.starts_with_digit() => {
                source = WeightSource::Parts(list(cursor, part)?);
            }
            "parts" => source = WeightSource::Parts(Vec::new()),
            "constant" => source = WeightSource::Constant(numbers(cursor)?),
            "integers" => source = WeightSource::Integers(numbers(cursor)?),
            "add_one" => transform = Transform::AddOne,
            "neg_exp" => transform = Transform::NegExp,
            _ => {
                let need = "`named`, `parts`, `constant`, `integers`, `add_one` or `neg_exp`";
                return Err(ParseFault::expected(word, need));
            }
        }
    }
    Ok(WeightDef { name, ty, source, transform })
}

fn slice(cursor: &mut Cursor<'_>) -> Result<TensorSlice, ParseFault> {
    let tensor = cursor.string()?;
    if !cursor.eat("[") {
        return Ok(TensorSlice::whole(tensor));
    }
    let first = cursor.number("the first row")?;
    cursor.expect("..", "`..`")?;
    let end = cursor.number("the end of the rows")?;
    cursor.expect("]", "`]`")?;
    Ok(TensorSlice { tensor, rows: Some((first, end)) })
}

fn part(cursor: &mut Cursor<'_>) -> Result<Part, ParseFault> {
    let file = cursor.number("the number of a file")?;
    cursor.expect(":", "`:` and an offset")?;
    let offset = cursor.number("an offset in bytes")?;
    cursor.expect("+", "`+` and a number of bytes")?;
    Ok(Part { file, offset, bytes: cursor.number("a number of bytes")? })
}

/// Numbers up to the first word that is none.
fn numbers<T: FromStr>(cursor: &mut Cursor<'_>) -> Result<Vec<T>, ParseFault> {
    let mut values = Vec::new();
    let ends = |cursor: &mut Cursor<'_>| {
        cursor.at_end() || cursor.starts_with("add_one") || cursor.starts_with("neg_exp")
    };
    while !ends(cursor) {
        let word = cursor.word().ok_or_else(|| cursor.expected("a number"))?;
        values.push(word.parse().map_err(|_| ParseFault::expected(word, "a number"))?);
    }
    Ok(values)
}

fn state(cursor: &mut Cursor<'_>) -> Result<StateDef, ParseFault> {
    let kind = match cursor.word() {
        Some("append") => StateKind::Append,
        Some("recurrent") => StateKind::Recurrent,
        Some("tail") => StateKind::Tail(cursor.number("the number of rows")?),
        _ => return Err(cursor.expected("`append`, `recurrent` or `tail ROWS`")),
    };
    let name = cursor.string()?;
    cursor.expect(":", "`:` and the type of a row")?;
    let mut def = StateDef::new(name, kind, tensor_type(cursor)?);
    while let Some(word) = cursor.word() {
        match word {
            "every" => def.every = cursor.number("the positions of a row")?,
            "first" => def.first = cursor.number("the first position")?,
            "seed" => {
                cursor.expect("s", "a state: `sN`")?;
                let number: u16 = cursor.number("a state: `sN`")?;
                def.seed = Some(StateId::from_index(usize::from(number)));
            }
            _ => return Err(ParseFault::expected(word, "`every`, `first` or `seed`")),
        }
    }
    Ok(def)
}
