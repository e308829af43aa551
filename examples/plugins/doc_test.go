// Package plugins_test runs the plugins that are examples: their own tests, and their
// built files under a real agent.
package plugins_test
