//! Expressions, with Jinja's precedences.

use super::{DEEPEST, Parser};
use crate::ast::{Arguments, BinaryOp, CompareOp, Expr, Literal, Name};
use crate::error::{Error, Result};
use crate::lexer::Token;
use crate::names;

/// Operands that follow one another without parentheses; each makes the tree one level deeper.
const LONGEST_CHAIN: usize = 500;

impl Parser {
    /// An expression, or several with commas between them as a tuple.
    pub(super) fn tuple(&mut self, takes_if: bool, ends: &[&str]) -> Result<Expr> {
        self.tuple_in(takes_if, ends, false)
    }

    fn tuple_in(&mut self, takes_if: bool, ends: &[&str], has_parentheses: bool) -> Result<Expr> {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            let is_end = matches!(
                self.token(),
                Token::VariableEnd | Token::BlockEnd | Token::Op(")")
            );
            if is_end || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            items.push(self.expression(takes_if)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(single) = items.pop() {
                return Ok(single);
            }
            if !has_parentheses {
                return self.fail(format!("Expected an expression, got {}", self.described()));
            }
        }
        Ok(Expr::Tuple(items))
    }

    pub(super) fn expression(&mut self, takes_if: bool) -> Result<Expr> {
        self.deeper(|parser| {
            if takes_if {
                parser.conditional()
            } else {
                parser.or()
            }
        })
    }

    fn conditional(&mut self) -> Result<Expr> {
        // Filters of a conditional's parts are looked for when it is rendered; the part before "if" is
        // read before that is known.
        let unknown = self.unknown.clone();
        let mut value = self.or()?;
        let is_soft = self.is_soft;
        if self.is_name("if") {
            self.unknown = unknown;
            self.is_soft = true;
        }
        let mut chain = 0;
        while self.skip_name("if") {
            chain += 1;
            self.check_chain(chain)?;
            let test = self.or()?;
            let otherwise = if self.skip_name("else") {
                Some(Box::new(self.deeper(Parser::conditional)?))
            } else {
                None
            };
            value = Expr::If(Box::new(test), Box::new(value), otherwise);
        }
        self.is_soft = is_soft;
        Ok(value)
    }

    fn check_chain(&self, length: usize) -> Result<()> {
        if length > LONGEST_CHAIN {
            return self.fail("the template nests too deeply");
        }
        Ok(())
    }

    fn or(&mut self) -> Result<Expr> {
        self.joined("or", Parser::and, Expr::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.joined("and", Parser::not, Expr::And)
    }

    /// Operands between which this word stands, from the left.
    fn joined(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Result<Expr>,
        join: fn(Box<Expr>, Box<Expr>) -> Expr,
    ) -> Result<Expr> {
        let mut left = operand(self)?;
        let mut chain = 0;
        while self.skip_name(word) {
            chain += 1;
            self.check_chain(chain)?;
            left = join(Box::new(left), Box::new(operand(self)?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            let inner = self.deeper(Parser::not)?;
            return Ok(Expr::Not(Box::new(inner)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.token() {
                Token::Op("==") => CompareOp::Eq,
                Token::Op("!=") => CompareOp::Ne,
                Token::Op("<") => CompareOp::Lt,
                Token::Op("<=") => CompareOp::Le,
                Token::Op(">") => CompareOp::Gt,
                Token::Op(">=") => CompareOp::Ge,
                Token::Name(name) if name == "in" => CompareOp::In,
                Token::Name(name)
                    if name == "not" && matches!(self.after(), Token::Name(it) if it == "in") =>
                {
                    self.advance();
                    CompareOp::NotIn
                }
                _ => break,
            };
            self.advance();
            rest.push((op, self.sum()?));
        }
        Ok(if rest.is_empty() {
            first
        } else {
            Expr::Compare(Box::new(first), rest)
        })
    }

    /// Operands with operators of one precedence between them, from the left.
    fn chain(
        &mut self,
        operators: &[(&str, BinaryOp)],
        operand: fn(&mut Parser) -> Result<Expr>,
    ) -> Result<Expr> {
        let mut left = operand(self)?;
        let mut chain = 0;
        while let Some((_, op)) = operators.iter().find(|(op, _)| self.is_op(op)) {
            self.advance();
            chain += 1;
            self.check_chain(chain)?;
            left = Expr::Binary(*op, Box::new(left), Box::new(operand(self)?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr> {
        let operators = [("+", BinaryOp::Add), ("-", BinaryOp::Sub)];
        self.chain(&operators, Parser::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        let operators = [
            ("*", BinaryOp::Mul),
            ("/", BinaryOp::Div),
            ("//", BinaryOp::FloorDiv),
            ("%", BinaryOp::Mod),
        ];
        self.chain(&operators, |parser| {
            parser.chain(&[("**", BinaryOp::Pow)], |parser| parser.unary(true))
        })
    }

    fn unary(&mut self, takes_filters: bool) -> Result<Expr> {
        let mut value = if self.is_op("-") || self.is_op("+") {
            let is_minus = self.is_op("-");
            self.advance();
            let inner = self.deeper(|parser| parser.unary(false))?;
            Expr::Sign(is_minus, Box::new(inner))
        } else {
            self.primary()?
        };
        value = self.postfix(value)?;
        if takes_filters {
            value = self.filters_and_tests(value)?;
        }
        Ok(value)
    }

    fn primary(&mut self) -> Result<Expr> {
        let literal = match self.token().clone() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Literal::Bool(true),
                "false" | "False" => Literal::Bool(false),
                "none" | "None" => Literal::None,
                _ => {
                    self.advance();
                    self.note_name(&name)?;
                    return Ok(Expr::Name(name.into()));
                }
            },
            Token::Text(mut text) => {
                while let Token::Text(more) = self.after() {
                    text.push_str(more);
                    self.at += 1;
                }
                Literal::Text(text.into())
            }
            Token::Int(value) => Literal::Int(value),
            Token::Float(value) => Literal::Float(value),
            Token::Op("(") => {
                self.advance();
                let inner = self.deeper(|parser| parser.tuple_in(true, &[], true))?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            Token::Op("[") => return self.list(),
            Token::Op("{") => return self.dict(),
            _ => return self.fail(format!("unexpected {}", self.described())),
        };
        self.advance();
        Ok(Expr::Literal(literal))
    }

    /// A name that is read.
    fn note_name(&mut self, name: &str) -> Result<()> {
        match name {
            "self" | "super" => return self.fail(format!("{name} is not implemented")),
            "caller" | "kwargs" | "varargs" => {
                if let Some(used) = self.special.last_mut() {
                    match name {
                        "caller" => used.caller = true,
                        "kwargs" => used.kwargs = true,
                        _ => used.varargs = true,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self) -> Result<Expr> {
        self.advance();
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op("]") {
                    break;
                }
            }
            items.push(self.expression(true)?);
        }
        self.expect_op("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Result<Expr> {
        self.advance();
        let mut items = Vec::new();
        while !self.is_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op("}") {
                    break;
                }
            }
            let key = self.expression(true)?;
            self.expect_op(":")?;
            items.push((key, self.expression(true)?));
        }
        self.expect_op("}")?;
        Ok(Expr::Dict(items))
    }

    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        let mut chain = 0;
        loop {
            value = if self.is_op(".") || self.is_op("[") {
                self.subscript(value)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(value), Box::new(self.arguments()?))
            } else {
                return Ok(value);
            };
            chain += 1;
            self.check_chain(chain)?;
        }
    }

    fn filters_and_tests(&mut self, mut value: Expr) -> Result<Expr> {
        let mut chain = 0;
        loop {
            value = if self.is_op("|") {
                self.filters(Some(value), false)?
            } else if self.is_name("is") {
                self.test(value)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(value), Box::new(self.arguments()?))
            } else {
                return Ok(value);
            };
            chain += 1;
            self.check_chain(chain)?;
        }
    }

    fn subscript(&mut self, value: Expr) -> Result<Expr> {
        if self.skip_op(".") {
            let item = match self.token() {
                Token::Name(name) => {
                    let name = Name::from(name.as_str());
                    self.advance();
                    return Ok(Expr::Attribute(Box::new(value), name));
                }
                Token::Int(index) => Expr::Literal(Literal::Int(*index)),
                _ => return self.fail("expected name or number"),
            };
            self.advance();
            return Ok(Expr::Item(Box::new(value), Box::new(item)));
        }
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            items.push(self.subscribed()?);
        }
        self.expect_op("]")?;
        let single = (items.len() == 1).then(|| items.pop()).flatten();
        if single.is_none() && items.iter().any(|item| matches!(item, Expr::Slice(_))) {
            return self.fail("slices in a tuple are not implemented");
        }
        let item = single.unwrap_or(Expr::Tuple(items));
        Ok(Expr::Item(Box::new(value), Box::new(item)))
    }

    fn subscribed(&mut self) -> Result<Expr> {
        let is_end = |parser: &Parser| parser.is_op("]") || parser.is_op(",");
        let start = if self.is_op(":") {
            None
        } else {
            let item = self.expression(true)?;
            if !self.is_op(":") {
                return Ok(item);
            }
            Some(item)
        };
        self.advance();
        let stop = if self.is_op(":") || is_end(self) {
            None
        } else {
            Some(self.expression(true)?)
        };
        let step = if self.skip_op(":") && !is_end(self) {
            Some(self.expression(true)?)
        } else {
            None
        };
        Ok(Expr::Slice(Box::new([start, stop, step])))
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.expect_op("(")?;
        let mut found = Arguments::default();
        let mut is_first = true;
        while !self.is_op(")") {
            if !is_first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            is_first = false;
            let mut is_valid = true;
            if self.skip_op("*") {
                is_valid = found.list.is_none() && found.map.is_none();
                found.list = Some(Box::new(self.expression(true)?));
            } else if self.skip_op("**") {
                is_valid = found.map.is_none();
                found.map = Some(Box::new(self.expression(true)?));
            } else if matches!(self.token(), Token::Name(_)) && self.after() == &Token::Op("=") {
                is_valid = found.map.is_none();
                let name = self.expect_name()?;
                self.advance();
                if found.named.iter().any(|(it, _)| *it == name) {
                    return self.fail(format!("keyword argument repeated: {name}"));
                }
                let value = self.expression(true)?;
                found.named.push((name, value));
            } else {
                is_valid &= found.list.is_none() && found.map.is_none() && found.named.is_empty();
                found.positional.push(self.expression(true)?);
            }
            if !is_valid {
                return self.fail("invalid syntax for function call expression");
            }
        }
        self.expect_op(")")?;
        Ok(found)
    }

    /// Notes a filter or test that there is none of.
    fn note_unknown(&mut self, reason: String) {
        let line = self.line();
        if !self.is_soft {
            self.unknown.get_or_insert(Error::At { line, reason });
        }
    }

    /// A name that may have dots.
    fn dotted_name(&mut self) -> Result<Name> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name.into())
    }

    /// Filters behind a value, or of a block; `is_block`: the first has no bar before it.
    pub(super) fn filters(&mut self, value: Option<Expr>, is_block: bool) -> Result<Expr> {
        let mut value = value;
        let mut is_first = is_block;
        let mut chain = 0;
        while is_first || self.is_op("|") {
            if !is_first {
                self.advance();
            }
            is_first = false;
            chain += 1;
            self.check_chain(chain)?;
            let name = self.dotted_name()?;
            if !names::is_filter(&name) {
                self.note_unknown(format!("No filter named '{name}'."));
            }
            let arguments = if self.is_op("(") {
                self.arguments()?
            } else {
                Arguments::default()
            };
            value = Some(Expr::Filter(value.map(Box::new), name, Box::new(arguments)));
        }
        match value {
            Some(value) => Ok(value),
            None => self.fail("expected a filter"),
        }
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        // "is".
        self.advance();
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        if !names::is_test(&name) {
            self.note_unknown(format!("No test named '{name}'."));
        }
        let begins_argument = match self.token() {
            Token::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Op(op) => matches!(*op, "[" | "{"),
            _ => false,
        };
        let mut arguments = Arguments::default();
        if self.is_op("(") {
            arguments = self.arguments()?;
        } else if begins_argument {
            if self.is_name("is") {
                return self.fail("You cannot chain multiple tests with is");
            }
            let argument = self.primary()?;
            arguments.positional.push(self.postfix(argument)?);
        }
        let test = Expr::Test(Box::new(value), name, Box::new(arguments));
        Ok(if is_negated {
            Expr::Not(Box::new(test))
        } else {
            test
        })
    }
}

const _: () = assert!(DEEPEST < LONGEST_CHAIN);
