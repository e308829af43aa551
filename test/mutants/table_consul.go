package main

const (
	tokensPkg    = "./host/internal/consul/tokens"
	clusterSuite = "./test/suite/cluster"
)

// inConsul are planted bugs of what is in a Consul.
var inConsul = []mutant{
	{
		name: "signs-before-published", promise: "a key signs only after every server publishes it",
		file: "host/internal/consul/tokens/rotate.go",
		old:  "	if err := a.publishedEverywhere(ctx, is.Key.ID); err != nil {\n",
		new:  "	if err := error(nil); err != nil {\n",
		pkg:  tokensPkg, run: "^TestRotationOfFetchedKeys$",
	},
	{
		name: "signs-before-known", promise: "a key signs only after every Consul has it",
		file: "host/internal/consul/tokens/rotate.go",
		old:  "		if has {\n			return nil\n		}\n		return fmt.Errorf(\"the auth method of the consul block %q has not",
		new:  "		if has || !has {\n			return nil\n		}\n		return fmt.Errorf(\"the auth method of the consul block %q has not",
		pkg:  tokensPkg, run: "^TestRotationOfStandingKeys$",
	},
	{
		name: "withdrawn-too-early", promise: "a key that was replaced is published until the last JWT that it has signed is over",
		file: "host/internal/consul/tokens/rotate.go",
		old:  "end := is.Since.Add(a.overlap); time.Now().Before(end)",
		new:  "end := is.Since.Add(a.overlap); time.Now().After(end)",
		pkg:  tokensPkg, run: "^TestRotationOfFetchedKeys$",
	},
	{
		name: "intentions-of-the-gone", promise: "what a node that is gone for good has left in Consul is removed with the node",
		file: "plugins/consul-services/internal/services/intentions.go",
		old:  "	if len(instances) > 0 && !p.services.sweepDue(",
		new:  "	if !p.services.sweepDue(",
		pkg:  "./plugins/consul-services/internal/services", run: "^TestAGoneHostsIntentions$",
	},
	{
		name: "servers-not-asked", promise: "the leader asks every server of the cluster whether it publishes the next key",
		file: "host/internal/agent/server.go",
		old:  "		return s.servers.KeySets(ctx, servers)\n",
		new:  "		return s.servers.KeySets(ctx, servers[:0])\n",
		pkg:  clusterSuite, run: "^TestServersDieWhileTheSigningKeyIsReplaced$",
	},
	{
		name: "collected-stays-in-consul", promise: "what a node that is collected has left in Consul is removed with the node",
		file: "host/internal/agent/ledger.go",
		old:  "Forget: k.services.Forget, ",
		new:  "",
		pkg:  clusterSuite, run: "^TestConsulForgetsHostsThatAreGone$",
	},
}
