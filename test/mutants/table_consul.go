package main

const tokensPkg = "./host/internal/consul/tokens"

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
		old:  "	if !p.services.sweepDue(held{p.agent.consul, p.owner}) {\n",
		new:  "	if !p.services.sweepDue(held{p.agent.consul, registration.Owner{}}) || len(instances) == 0 {\n",
		pkg:  "./plugins/consul-services/internal/services", run: "^TestAGoneHostsIntentions$",
	},
}
