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
	{
		name: "other-clusters-tokens-swept", promise: "a sweep revokes no token of another cluster in the same Consul",
		in: "host/internal/consul/tokens", decl: "Authority.list",
		old: "return t.Subject.Cluster != cluster })",
		new: "return t.Subject.Cluster == \"\" })",
		pkg: tokensPkg, run: "^TestTwoBlocksOfOneConsul$",
	},
	{
		name: "unrecorded-token-stays", promise: "a token from a login that cannot be recorded is revoked",
		in: "host/internal/consul/tokens", decl: "Authority.note",
		old: "a.end(undoing, t, secret)",
		new: "a.end(undoing, t, \"\")",
		pkg: tokensPkg, run: "^TestLoginThatCannotBeNoted$",
	},
	{
		name: "cancelled-call-forgotten", promise: "a token that Consul may still make after its caller has given up is revoked",
		in: "host/internal/consul/tokens", decl: "unanswered",
		old: "case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:",
		new: "case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.Internal:",
		pkg: tokensPkg, run: "^TestDoubt$",
	},
	{
		name: "token-with-more-rights", promise: "a token that has more than the service's identity is refused",
		in: "plugins/sids/internal/tokens", decl: "checkIdentity",
		old: "len(token.Policies)+len(token.Roles)+len(token.NodeIdentities)+len(token.TemplatedPolicies) > 0",
		new: "len(token.Policies)+len(token.Roles) > 0",
		pkg: "./plugins/sids/internal/tokens", run: "^TestIdentityAlone$",
	},
	{
		name: "description-unread", promise: "whose token it is can be read in its description",
		in: "plugins/sids/internal/tokens", decl: "describable",
		old: "name == \"\" || strings.ContainsAny(name, \"[]\")",
		new: "name == \"\" || strings.ContainsAny(name, \"[\")",
		pkg: "./plugins/sids/internal/tokens", run: "^TestDescribable$",
	},
	{
		name: "rate-outlives-its-caller", promise: "who gives up is not kept waiting by the rate of tokens",
		in: "plugins/sids/internal/tokens", decl: "Issuer.admit",
		old: "conf.limiter.Wait(ctx)",
		new: "conf.limiter.Wait(context.WithoutCancel(ctx))",
		pkg: "./plugins/sids/internal/tokens", run: "^TestRate$",
	},
	{
		name: "token-by-a-hard-link", promise: "the bootstrap takes no token from a hard link to somebody else's file",
		in: "plugins/envoy-bootstrap/internal/generator", decl: "streamToken",
		old: "case !ok || stat.Nlink != 1:",
		new: "case !ok || stat.Nlink == 0:",
		pkg: "./plugins/envoy-bootstrap/internal/generator", run: "^TestTokenFile$",
	},
	{
		name: "tls-on-a-socket", promise: "Envoy speaks to Consul's unix socket without TLS unless grpc_ca_file says so",
		in: "plugins/envoy-bootstrap/internal/generator", decl: "Generator.server",
		old: "		caFile = c.GRPCCAFile\n",
		new: "",
		pkg: "./plugins/envoy-bootstrap/internal/generator", run: "^TestParity$",
	},
	{
		name: "token-to-any-server", promise: "without any CA no bootstrap is made that sends the token to whoever answers",
		in: "plugins/envoy-bootstrap/internal/generator", decl: "Generator.askCA",
		old: "if pems.Len() == 0 {",
		new: "if pems.Len() < 0 {",
		pkg: "./plugins/envoy-bootstrap/internal/generator", run: "^TestNoCA$",
	},
	{
		name: "any-unchecked", promise: "what Envoy would refuse inside of a google.protobuf.Any is refused before the start",
		in: "plugins/envoy-bootstrap/internal/envoy", decl: "validate",
		old: "			return validateOne(last.Value.Message().Interface())\n",
		new: "			return nil\n",
		pkg: "./plugins/envoy-bootstrap/internal/envoy", run: "^TestWrongValues$",
	},
	{
		name: "unwritten-secrets-stay", promise: "what an interrupted write has left of a secret is removed",
		in: "host/internal/consul/secretsdir", decl: "sweep.folder",
		old: "case len(path) == 4 && !strings.HasPrefix(e.Name(), temporary):",
		new: "case len(path) == 4:",
		pkg: "./host/internal/consul/secretsdir", run: "^TestSweep$",
	},
	{
		name: "registered-again-by-the-sync", promise: "a sync does not restore a service that is just being deregistered",
		in: "host/internal/consul/services", decl: "keeper.instances",
		old: "!newer && !k.gone[i.ID]",
		new: "!newer",
		pkg: "./host/internal/consul/services", run: "^TestCallsWinOverTheSync$",
	},
	{
		name: "refused-stays-held", promise: "an instance that Consul refuses does not keep the others from being in sync",
		in: "host/internal/consul/services", decl: "keeper.registered",
		old: "		delete(k.held, i.ID)\n",
		new: "",
		pkg: "./host/internal/consul/services", run: "^TestCallsThatFail$",
	},
	{
		name: "forgets-its-own", promise: "what is removed from Consul for a node that is gone is that node's",
		in: "host/internal/consul/services", decl: "Registrar.Forget",
		old: "	owner.Node = node\n",
		new: "",
		pkg: "./host/internal/consul/services", run: "^TestForget$",
	},
	{
		name: "foreign-checks-removed", promise: "checks that others have added to a service in Consul stay",
		in: "plugins/consul-services/internal/services", decl: "view.staleChecks",
		old: "strings.HasPrefix(have, checkPrefix(id)) &&\n			!slices",
		new: "!slices",
		pkg: "./plugins/consul-services/internal/services", run: "^TestForeign$",
	},
}
