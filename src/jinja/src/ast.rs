//! A parsed template.

use std::sync::Arc;

pub(crate) type Name = Arc<str>;

#[derive(Debug)]
pub(crate) enum Literal {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// Arguments of a call, a filter or a test.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
    /// `*args` and `**kwargs`.
    pub list: Option<Box<Expr>>,
    pub map: Option<Box<Expr>>,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Literal(Literal),
    Name(Name),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// Test, then, else.
    If(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    Or(Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// True for minus.
    Sign(bool, Box<Expr>),
    Concat(Vec<Expr>),
    Attribute(Box<Expr>, Name),
    Item(Box<Expr>, Box<Expr>),
    /// Start, stop, step; only within an item.
    Slice(Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Box<Arguments>),
    /// The value is `None` where a block gives it.
    Filter(Option<Box<Expr>>, Name, Box<Arguments>),
    Test(Box<Expr>, Name, Box<Arguments>),
}

/// What is assigned to.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub(crate) struct MacroDef {
    /// `None`: of a call block.
    pub name: Option<Name>,
    pub parameters: Vec<Name>,
    /// Of the last parameters.
    pub defaults: Vec<Expr>,
    pub body: Vec<Stmt>,
    pub uses_caller: bool,
    pub uses_kwargs: bool,
    pub uses_varargs: bool,
}

#[derive(Debug)]
pub(crate) struct For {
    pub target: Target,
    pub items: Expr,
    pub test: Option<Expr>,
    pub is_recursive: bool,
    pub body: Vec<Stmt>,
    pub otherwise: Vec<Stmt>,
}

/// A statement and its line.
pub(crate) type Stmt = (StmtKind, u32);

#[derive(Debug)]
pub(crate) enum StmtKind {
    Data(String),
    Print(Expr),
    Set(Target, Expr),
    /// Target, filters, body.
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    /// Tests with their bodies, and what else.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    For(Arc<For>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Macro(Arc<MacroDef>),
    /// The called macro and its arguments, and the body.
    Call(Expr, Arc<MacroDef>),
    FilterBlock(Expr, Vec<Stmt>),
    /// A block that nothing overrides.
    Block(Vec<Stmt>, bool),
    /// `{% generation %}`: what the assistant wrote.
    Generation(Arc<MacroDef>),
    Break,
    Continue,
}
