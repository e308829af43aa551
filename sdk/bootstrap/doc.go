// Package bootstrap is the kind "bootstrap": a plugin that makes the file that a
// service's proxy is started with.
package bootstrap
