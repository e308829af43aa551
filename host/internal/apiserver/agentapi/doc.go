// Package agentapi answers the API's calls about the agent itself: its status and metrics, events, logs, diagnosis and
// examination, and its stop, reload and upgrade.
package agentapi
