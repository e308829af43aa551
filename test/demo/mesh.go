package main

import (
	"context"
	"strconv"
)

// meshStory runs the mesh demo. program is Consul's.
func meshStory(ctx context.Context, h *host, program string) error {
	s := &meshTeller{teller: &teller{ctx: ctx, h: h}, program: program}

	s.say("A folder for all that follows, which is typed in there, with these variables.")
	s.prepare()

	s.say("A Consul starts, with TLS, and with ACLs that allow nothing without a token.")
	s.sh("consul tls ca create >tls.log && consul tls cert create -server -dc dc1 >>tls.log")
	s.startConsul()

	s.say("The host gets a token that registers services, and the plugin sids, alone, one that makes tokens.")
	s.sh("consul acl policy create -name pannier-node -rules @node-policy.hcl >acl.log")
	s.sh("(umask 077 && consul acl token create -policy-name pannier-node | sed -n 's/^SecretID: *//p' >node.token)")
	s.sh(`consul acl policy create -name pannier-sids -rules 'acl = "write"' >>acl.log`)
	s.sh("(umask 077 && consul acl token create -policy-name pannier-sids | sed -n 's/^SecretID: *//p' >sids.token)")

	s.say("An agent starts, with the plugins for Consul.")
	s.startAgent()
	s.look()
	s.pannier("plugin", "status")

	s.say(
		"Two workloads come into the mesh: db, and web that asks db. Their sidecars are the proxy that Consul brings; Envoy is run in the same way.")
	s.sh("cat db.hcl")
	db := s.background("workload", "run", h.path("db.hcl"))
	web := s.background("workload", "run", h.path("web.hcl"))
	s.until("pannier workload status db", "bootstrap db ... done")
	s.until("pannier workload status web", "bootstrap web ... done")
	s.sh("consul catalog services")

	s.say("Each has a token of its own, for its service alone ...")
	s.sh("pannier token list")
	s.sh(siTokens)
	s.say("... in a file on a tmpfs that no other user can read.")
	s.sh(`find data/secrets -printf '%M %u %P\n'`)
	s.sh("findmnt --noheadings --target data/secrets/default/web/web")

	s.say("The bootstrap is what Envoy starts with. It leads to Consul, which sends what web's proxy has to be.")
	s.sh("head -n 10 data/secrets/default/web/web/envoy_bootstrap.json")
	s.sh("xds -c data/secrets/default/web/web/envoy_bootstrap.json")

	s.say("web asks db. No intention allows it, then one does, then that denies it.")
	ask := "curl -sS --max-time 5 http://127.0.0.1:" + strconv.Itoa(s.ports.upstream)
	s.refused("consul intention check web db", "Denied")
	s.untilRefused(ask)
	s.sh("consul intention create -allow web db")
	s.until(ask, greeting)
	s.sh("consul intention create -replace -deny web db")
	s.untilRefused(ask)

	s.say(
		"Somebody copies the bootstrap. Then the workloads end, and nothing of them is left: no service, no token, no file. The copy is worth nothing.")
	s.sh("install -m 0600 data/secrets/default/web/web/envoy_bootstrap.json copy.json")
	s.end(web)
	s.end(db)
	s.nothing("consul catalog services | sed -n '/^db/p; /^web/p'")
	s.nothing(siTokens)
	s.sh("pannier token list")
	s.nothing("find data/secrets -mindepth 1 ! -name '.*'")
	s.refused("xds -c copy.json", "ACL not found")

	s.say("The agent and Consul stop.")
	s.stopAgent()
	s.stopConsul()
	s.check("no process of the plugins and no mount is left", s.nothingLeft)
	return s.err
}
