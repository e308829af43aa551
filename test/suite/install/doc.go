// Package install tests that a release can be installed and built against with the go command alone. It publishes the
// tree's two modules in a module proxy made of files, so that neither a checkout nor a tag is needed.
package install
