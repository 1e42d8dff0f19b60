//! Statements of a template.

use crate::ast::{Expr, For, MacroDef, Name, Stmt, StmtKind, Target};
use crate::error::{Error, Result};
use crate::lexer::{Token, tokenize};
use std::sync::Arc;

#[path = "parser/expressions.rs"]
mod expressions;

/// Statements and expressions in one another. Python's own compiler takes fewer.
const DEEPEST: usize = 200;

/// A parsed template and whether it has generation tags.
pub(crate) fn parse(source: &str) -> Result<(Vec<Stmt>, bool)> {
    let mut parser = Parser {
        tokens: tokenize(source)?,
        at: 0,
        depth: 0,
        is_soft: false,
        loops: 0,
        all_loops: 0,
        special: Vec::new(),
        blocks: Vec::new(),
        has_generation: false,
        unknown: None,
    };
    let body = parser.body(&[])?;
    Ok((body, parser.has_generation))
}

/// Which of a macro's special names its body reads.
#[derive(Clone, Copy, Default)]
struct Special {
    caller: bool,
    kwargs: bool,
    varargs: bool,
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
    /// Whether this stands within a condition: filters and tests are looked for when it is rendered.
    is_soft: bool,
    /// Loops around this within the same function.
    loops: usize,
    /// All loops around this.
    all_loops: usize,
    /// Of the macros around this.
    special: Vec<Special>,
    /// Names of blocks.
    blocks: Vec<String>,
    has_generation: bool,
    /// The first filter or test that there is none of.
    unknown: Option<Error>,
}

impl Parser {
    fn token(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn after(&self) -> &Token {
        let next = self.tokens.get(self.at + 1);
        next.map_or(&Token::End, |(token, _)| token)
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        let (line, reason) = (self.line(), reason.into());
        Err(Error::At { line, reason })
    }

    fn advance(&mut self) {
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found == name)
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(found) if *found == op)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is_there = self.is_name(name);
        if is_there {
            self.advance();
        }
        is_there
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let is_there = self.is_op(op);
        if is_there {
            self.advance();
        }
        is_there
    }

    fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) {
            Ok(())
        } else {
            self.fail(format!("expected '{op}', got {}", self.described()))
        }
    }

    fn expect_name(&mut self) -> Result<Name> {
        match self.token() {
            Token::Name(name) => {
                let name = Name::from(name.as_str());
                self.advance();
                Ok(name)
            }
            _ => self.fail(format!("expected a name, got {}", self.described())),
        }
    }

    fn expect(&mut self, token: &Token) -> Result<()> {
        if self.token() == token {
            self.advance();
            Ok(())
        } else {
            self.fail(format!("unexpected {}", self.described()))
        }
    }

    fn described(&self) -> String {
        match self.token() {
            Token::Data(_) => "template data".to_string(),
            Token::VariableBegin => "begin of print statement".to_string(),
            Token::VariableEnd => "end of print statement".to_string(),
            Token::BlockBegin => "begin of statement block".to_string(),
            Token::BlockEnd => "end of statement block".to_string(),
            Token::Name(name) => format!("'{name}'"),
            Token::Text(_) => "a string".to_string(),
            Token::Int(_) => "an integer".to_string(),
            Token::Float(_) => "a float".to_string(),
            Token::Op(op) => format!("'{op}'"),
            Token::End => "end of template".to_string(),
        }
    }

    /// Parses one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        if self.depth == DEEPEST {
            return self.fail("the template nests too deeply");
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to one of these tags, whose name is the next token; without tags, up to the
    /// template's end.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        self.deeper(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            if let Some(error) = self.unknown.take() {
                return Err(error);
            }
            let line = self.line();
            match self.token() {
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => {
                    let wanted = ends.join(" or ");
                    return self.fail(format!("unexpected end of template: {wanted} is missing"));
                }
                Token::Data(text) => {
                    body.push((StmtKind::Data(text.clone()), line));
                    self.advance();
                }
                Token::VariableBegin => {
                    self.advance();
                    let value = self.tuple(true, &[])?;
                    self.expect(&Token::VariableEnd)?;
                    body.push((StmtKind::Print(value), line));
                }
                Token::BlockBegin => {
                    self.advance();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    for kind in self.statement()? {
                        body.push((kind, line));
                    }
                    self.expect(&Token::BlockEnd)?;
                }
                _ => return self.fail(format!("unexpected {}", self.described())),
            }
        }
    }

    /// The body of a statement up to its end tag, which is passed over.
    fn body_to(&mut self, end: &str) -> Result<Vec<Stmt>> {
        self.skip_op(":");
        self.expect(&Token::BlockEnd)?;
        let body = self.body(&[end])?;
        self.advance();
        Ok(body)
    }

    /// As [`Parser::body_to`] in a scope of its own, where unknown filters are errors at once.
    fn scope_to(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let is_soft = std::mem::replace(&mut self.is_soft, false);
        let body = self.body_to(end);
        self.is_soft = is_soft;
        body
    }

    /// As [`Parser::scope_to`], for a body whose text is taken: a loop around it cannot end there.
    fn captured_to(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let loops = std::mem::replace(&mut self.loops, 0);
        let body = self.scope_to(end);
        self.loops = loops;
        body
    }

    fn statement(&mut self) -> Result<Vec<StmtKind>> {
        let Token::Name(tag) = self.token() else {
            return self.fail("tag name expected");
        };
        let tag = tag.clone();
        Ok(vec![match tag.as_str() {
            "for" => self.for_statement()?,
            "if" => self.if_statement()?,
            "set" => self.set_statement()?,
            "with" => self.with_statement()?,
            "macro" => self.macro_statement()?,
            "call" => self.call_statement()?,
            "filter" => {
                self.advance();
                let filters = self.filters(None, true)?;
                StmtKind::FilterBlock(filters, self.captured_to("endfilter")?)
            }
            "block" => self.block_statement()?,
            "print" => return self.print_statement(),
            "generation" => {
                self.advance();
                self.has_generation = true;
                let body = self.function(None, Vec::new(), Vec::new(), "endgeneration")?;
                StmtKind::Generation(Arc::new(body))
            }
            "break" | "continue" => {
                self.advance();
                if self.loops == 0 {
                    return self.fail(format!("'{tag}' outside loop"));
                }
                match tag.as_str() {
                    "break" => StmtKind::Break,
                    _ => StmtKind::Continue,
                }
            }
            "include" | "import" | "from" | "extends" => {
                return self.fail(format!("{tag}: there are no other templates"));
            }
            "autoescape" => return self.fail("autoescape is not implemented"),
            other => return self.fail(format!("Encountered unknown tag '{other}'.")),
        }])
    }

    fn print_statement(&mut self) -> Result<Vec<StmtKind>> {
        self.advance();
        let mut printed = Vec::new();
        while self.token() != &Token::BlockEnd {
            if !printed.is_empty() {
                self.expect_op(",")?;
            }
            printed.push(StmtKind::Print(self.expression(true)?));
        }
        Ok(printed)
    }

    fn for_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        self.all_loops += 1;
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.fail(format!("expected 'in', got {}", self.described()));
        }
        let items = self.tuple(false, &["recursive"])?;
        let is_soft = std::mem::replace(&mut self.is_soft, false);
        let test = if self.skip_name("if") {
            Some(self.expression(true)?)
        } else {
            None
        };
        let is_recursive = self.skip_name("recursive");
        self.skip_op(":");
        self.expect(&Token::BlockEnd)?;
        self.loops += 1;
        let body = self.body(&["endfor", "else"]);
        self.loops -= 1;
        let body = body?;
        let otherwise = if self.is_name("else") {
            self.advance();
            self.body_to("endfor")?
        } else {
            self.advance();
            Vec::new()
        };
        self.is_soft = is_soft;
        self.all_loops -= 1;
        Ok(StmtKind::For(Arc::new(For {
            target,
            items,
            test,
            is_recursive,
            body,
            otherwise,
        })))
    }

    fn if_statement(&mut self) -> Result<StmtKind> {
        let is_soft = std::mem::replace(&mut self.is_soft, true);
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            // "if" or "elif".
            self.advance();
            let test = self.tuple(false, &[])?;
            self.skip_op(":");
            self.expect(&Token::BlockEnd)?;
            branches.push((test, self.body(&["elif", "else", "endif"])?));
            if self.is_name("elif") {
                continue;
            }
            let has_else = self.is_name("else");
            self.advance();
            if has_else {
                otherwise = self.body_to("endif")?;
            }
            break;
        }
        self.is_soft = is_soft;
        Ok(StmtKind::If(branches, otherwise))
    }

    fn set_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[])?));
        }
        let filters = if self.is_op("|") {
            Some(self.filters(None, false)?)
        } else {
            None
        };
        let body = self.captured_to("endset")?;
        Ok(StmtKind::SetBlock(target, filters, body))
    }

    fn with_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        let mut values = Vec::new();
        while self.token() != &Token::BlockEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_op("=")?;
            values.push((target, self.expression(true)?));
        }
        let body = self.scope_to("endwith")?;
        Ok(StmtKind::With(values, body))
    }

    fn block_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        let name = self.expect_name()?.to_string();
        if self.blocks.contains(&name) {
            return self.fail(format!("block '{name}' defined twice"));
        }
        let is_scoped = self.skip_name("scoped");
        if self.is_name("required") {
            return self.fail("required blocks are not implemented");
        }
        if self.is_op("-") {
            return self.fail("names of blocks have no hyphens");
        }
        self.blocks.push(name.clone());
        let loops = std::mem::replace(&mut self.loops, 0);
        let body = self.scope_to("endblock");
        self.loops = loops;
        self.skip_name(&name);
        Ok(StmtKind::Block(body?, is_scoped))
    }

    fn macro_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        let name = self.expect_name()?;
        self.assignable(&name)?;
        let (parameters, defaults) = self.signature()?;
        let body = self.function(Some(name), parameters, defaults, "endmacro")?;
        Ok(StmtKind::Macro(Arc::new(body)))
    }

    fn call_statement(&mut self) -> Result<StmtKind> {
        self.advance();
        let (parameters, defaults) = if self.is_op("(") {
            self.signature()?
        } else {
            Default::default()
        };
        let call = self.expression(true)?;
        if !matches!(call, Expr::Call(..)) {
            return self.fail("expected call");
        }
        let body = self.function(None, parameters, defaults, "endcall")?;
        Ok(StmtKind::Call(call, Arc::new(body)))
    }

    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expr>)> {
        self.expect_op("(")?;
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        while !self.is_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            self.assignable(&name)?;
            if parameters.contains(&name) {
                return self.fail(format!(
                    "duplicate argument '{name}' in function definition"
                ));
            }
            parameters.push(name);
            if self.skip_op("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return self.fail("non-default argument follows default argument");
            }
        }
        self.advance();
        Ok((parameters, defaults))
    }

    /// A body that is called, up to its end tag.
    fn function(
        &mut self,
        name: Option<Name>,
        parameters: Vec<Name>,
        defaults: Vec<Expr>,
        end: &str,
    ) -> Result<MacroDef> {
        self.special.push(Special::default());
        let loops = std::mem::replace(&mut self.loops, 0);
        let body = self.scope_to(end);
        self.loops = loops;
        let used = self.special.pop().unwrap_or_default();
        // What a macro within this one reads, this one has, too.
        if let Some(outer) = self.special.last_mut() {
            outer.caller |= used.caller;
            outer.kwargs |= used.kwargs;
            outer.varargs |= used.varargs;
        }
        let is_parameter = |name: &str| parameters.iter().any(|it| &**it == name);
        if is_parameter("caller") && defaults.is_empty() {
            return self.fail("the parameter caller without a default is not implemented");
        }
        Ok(MacroDef {
            uses_caller: used.caller || is_parameter("caller"),
            uses_kwargs: used.kwargs && !is_parameter("kwargs"),
            uses_varargs: used.varargs && !is_parameter("varargs"),
            name,
            parameters,
            defaults,
            body: body?,
        })
    }

    /// What is assigned to: names, or tuples of them.
    fn target(&mut self, ends: &[&str], takes_attributes: bool) -> Result<Target> {
        let first = self.one_target(takes_attributes)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_op(",") {
            let is_end = ends.iter().any(|end| self.is_name(end)) || self.is_op("=");
            if is_end || matches!(self.token(), Token::BlockEnd | Token::Op(")")) {
                break;
            }
            all.push(self.one_target(takes_attributes)?);
        }
        Ok(Target::Tuple(all))
    }

    fn one_target(&mut self, takes_attributes: bool) -> Result<Target> {
        if self.skip_op("(") {
            let inner = self.deeper(|parser| parser.target(&[], takes_attributes))?;
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        self.assignable(&name)?;
        if takes_attributes && self.skip_op(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    fn assignable(&self, name: &str) -> Result<()> {
        match name {
            "loop" if self.all_loops > 0 => {
                self.fail("Can't assign to special loop variable in for-loop target")
            }
            "true" | "false" | "none" | "True" | "False" | "None" => {
                self.fail(format!("can't assign to '{name}'"))
            }
            _ => Ok(()),
        }
    }
}
