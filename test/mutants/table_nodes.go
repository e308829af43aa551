package main

// otherNodes are planted bugs of what is asked of other nodes.
var otherNodes = []mutant{
	{
		name: "agents-lend-their-rights", promise: "an agent that passes on a call for another node lends the caller none of its own rights",
		in: "host/internal/apiserver", decl: "Server.admit",
		old: `secret == "" && s.cfg.SocketRoot && c.Root {`,
		new: `secret == "" && s.cfg.SocketRoot && (c.Root || c.Cert != nil) {`,
		pkg: "./host/internal/apiserver", run: "^TestAskAnotherNode$",
	},
	{
		name: "answer-of-another-node", promise: "what another host answers is never taken for the answer of the node that was asked",
		in: "sdk/api", decl: "check",
		old: "case answered != node:\n",
		new: "case answered != node && answered == \"-\":\n",
		pkg: "./host/internal/apiserver", run: "^TestAnotherNodeDoesNotAnswer$",
	},
	{
		name: "any-certificate-of-a-node", promise: "a node is asked only where its own certificate is shown",
		in: "host/internal/peer/transport", decl: "Dialer.Agents",
		old: "return d.dial(ctx, addr, role, name, protocolsHTTP...)\n",
		new: "return d.dial(ctx, addr, role, \"\", protocolsHTTP...)\n",
		pkg: "./host/internal/apiserver", run: "^TestAnotherNodeDoesNotAnswer$",
	},
	{
		name: "bound-node-sees-others", promise: "what a node asks of another one is filtered by the namespaces that it is bound to",
		in: "host/internal/apiserver/asknode", decl: "Asker.wayTo",
		old: "if a.Direct || w.node.Role == discovery.Server {\n",
		new: "if a.Direct || true {\n",
		pkg: "./host/internal/apiserver", run: "^TestAskAnotherNodeWithFewRights$",
	},
}
