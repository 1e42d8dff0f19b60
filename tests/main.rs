//! Integration tests: what a user sees. One binary, one module for each area, so that linking stays short.

mod cache;
mod cli;
mod data;
mod devices;
mod errors;
mod examples;
mod fit;
mod golden;
mod hub;
mod layers;
mod models;
mod neuron;
mod parallel;
mod pipelines;
mod precision;
mod processes;
mod regression;
mod scaling;
mod steady;
mod streaming;
mod support;
mod target;
mod tasks;
mod tasks_errors;
mod top;
mod train;
