//go:build client

package main

import "github.com/pannier/pannier/host/internal/cli"

func addAgent(*cli.Options) {}
