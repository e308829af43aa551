// Package agentcli is the pannier-agent command, which people type as pannier agent: the agent, and what starts plugins
// without an agent. Package cli has the command pannier, and what both share.
package agentcli
