// Package plugins_test tests the example plugins: it runs their own tests, and their binaries with a real
// agent.
package plugins_test
