//go:build !client

package main

import (
	"github.com/pannier/pannier/host/internal/agent"
	"github.com/pannier/pannier/host/internal/cli"
)

func addAgent(o *cli.Options) { o.RunAgent, o.CheckAgent = agent.Run, agent.Check }
