package main

const (
	tokensPkg    = "./host/internal/consul/tokens"
	clusterSuite = "./test/suite/cluster"
)

// inConsul are planted bugs of what is in a Consul.
var inConsul = []mutant{
	{
		name: "signs-before-published", promise: "a key signs only after every server publishes it",
		in: "host/internal/consul/tokens", decl: "Authority.knownEverywhere",
		old: "	if err := a.publishedEverywhere(ctx, is.Key.ID); err != nil {\n",
		new: "	if err := error(nil); err != nil {\n",
		pkg: tokensPkg, run: "^TestRotationOfFetchedKeys$",
	},
	{
		name: "signs-before-known", promise: "a key signs only after every Consul has it",
		in: "host/internal/consul/tokens", decl: "Authority.knownEverywhere",
		old: "		if has {\n			return nil\n		}\n		return fmt.Errorf(",
		new: "		if has || !has {\n			return nil\n		}\n		return fmt.Errorf(",
		pkg: tokensPkg, run: "^TestRotationOfStandingKeys$",
	},
	{
		name: "withdrawn-too-early", promise: "a key that was replaced is published until the last JWT that it has signed is over",
		in: "host/internal/consul/tokens", decl: "Authority.endPhase",
		old: "end := is.Since.Add(a.overlap); time.Now().Before(end)",
		new: "end := is.Since.Add(a.overlap); time.Now().After(end)",
		pkg: tokensPkg, run: "^TestRotationOfFetchedKeys$",
	},
	{
		name: "intentions-of-the-gone", promise: "what a node that is gone for good has left in Consul is removed with the node",
		in: "plugins/consul-services/internal/services", decl: "pass.sweepIntentions",
		old: "	if len(instances) > 0 && !p.services.sweepDue(",
		new: "	if !p.services.sweepDue(",
		pkg: "./plugins/consul-services/internal/services", run: "^TestAGoneHostsIntentions$",
	},
	{
		name: "servers-not-asked", promise: "the leader asks every server of the cluster whether it publishes the next key",
		in: "host/internal/agent", decl: "server.openConsul",
		old: "		return s.servers.KeySets(ctx, servers)\n",
		new: "		return s.servers.KeySets(ctx, servers[:0])\n",
		pkg: clusterSuite, run: "^TestServersDieWhileTheSigningKeyIsReplaced$",
	},
	{
		name: "collected-stays-in-consul", promise: "what a node that is collected has left in Consul is removed with the node",
		in: "host/internal/agent", decl: "ledgerKeeper.watcherConfig",
		old: "Forget: k.services.Forget, ",
		new: "",
		pkg: clusterSuite, run: "^TestConsulForgetsHostsThatAreGone$",
	},
}
