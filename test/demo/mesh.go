package main

import (
	"context"
	"fmt"
	"strconv"
)

// meshStory runs the mesh demo with Consul's program and Envoy's.
func meshStory(ctx context.Context, h *host, program, proxy string) error {
	s := &meshTeller{teller: &teller{ctx: ctx, h: h}, program: program, proxy: proxy}

	s.say("A folder for all that follows, which is typed in there, with these variables.")
	s.prepare()

	s.say("A Consul starts, with TLS, and with ACLs that allow nothing without a token.")
	s.sh("consul tls ca create >tls.log && consul tls cert create -server -dc dc1 >>tls.log")
	s.startConsul()

	s.say("One command makes what Pannier needs of Consul: the host's token, and one that makes tokens, for the plugin sids alone.")
	s.sh("pannier setup consul -config agent.hcl -minted -intentions")
	s.sh("pannier setup consul -config agent.hcl -minted -intentions -check")

	s.say("An agent starts, with the plugins for Consul.")
	s.startAgent()
	s.look()
	s.pannier("plugin", "status")

	s.say(
		"Two workloads come into the mesh: db, and web that asks db. Each has an Envoy.")
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
	ready := func(service string) string {
		return "curl -sS --unix-socket data/secrets/default/" + service + "/ready.sock http://envoy/ready"
	}
	const listeners = "curl -sS --unix-socket data/secrets/default/web/web/admin.sock http://envoy/listeners"
	s.until(listeners, "db:127.0.0.1:"+strconv.Itoa(s.ports.upstream))

	s.say("web asks db. No intention allows it. Then db's spec says who may call it, then it does not any more, and then again; db runs on.")
	ask := func(port int) string {
		return "curl -sS --max-time 5 -w 'HTTP status %{http_code}' http://127.0.0.1:" + strconv.Itoa(port)
	}
	const denied = "RBAC: access deniedHTTP status 403"
	s.refused("consul intention check web db", "Denied")
	s.until(ask(s.ports.upstream), denied)
	s.sh("diff db.hcl open.hcl || true")
	s.sh("pannier workload update open.hcl >update.log")
	s.until(ask(s.ports.upstream), greeting)
	s.sh("pannier workload update db.hcl >update.log")
	s.until(ask(s.ports.upstream), denied)
	s.sh("pannier workload update open.hcl >update.log")
	s.until(ask(s.ports.upstream), greeting)

	s.say("web's upstream moves to another port. Its program is not touched, and Envoy gets the listener by its stream.")
	pid := "pannier workload status web -o json | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'"
	s.sh(pid + " | tee pid")
	s.sh("pannier workload update moved.hcl >update.log")
	s.until(listeners, "db:127.0.0.1:"+strconv.Itoa(s.ports.moved))
	s.until(ask(s.ports.moved), greeting)
	s.sh(pid + " | cmp - pid")

	s.requests(s.ports.moved, func() {
		s.say("Consul gets another CA: both are trusted, then the certificate is replaced, then the CA of before goes.")
		s.sh("pgrep -f $PWD/data/secrets/default/web/ | tee envoy.pid")
		s.sh("mkdir new && cd new && consul tls ca create >tls.log && consul tls cert create -server -dc dc1 >>tls.log")
		s.sh("cat new/consul-agent-ca.pem >>consul-agent-ca.pem && consul reload")
		s.sh("cp new/dc1-server-consul-0*.pem . && consul reload")
		s.sh("cp new/consul-agent-ca.pem . && consul reload")

		s.say("Somebody revokes web's token. An agent that starts finds that at once, others within five minutes.")
		s.sh("pannier token inspect web")
		s.sh("consul acl token delete -accessor-id $(pannier token inspect web | awk '$1 == \"web\" { print $3 }')")
		s.refused("pannier token inspect web", "not known to Consul")
		s.stopAgent()
		s.startAgent()
		s.until("pannier events -recent 100 | grep identity-replaced", "another token")
		s.sh("pannier token inspect web")

		s.say("The same Envoy has read both.")
		s.until("curl -sS --unix-socket data/secrets/default/web/web/admin.sock http://envoy/stats?filter=connected_state", "connected_state: 1")
		s.sh("pgrep -f $PWD/data/secrets/default/web/ | cmp - envoy.pid")

		s.say("Access logs are turned on for the whole mesh, and off. Each time the next Envoys take over from the running ones.")
		s.sh("consul config write access-logs.hcl")
		s.takenOver("web", 1)
		s.takenOver("db", 1)
		s.sh("consul config delete -kind proxy-defaults -name global")
		s.takenOver("web", 2)
		s.takenOver("db", 2)
	})

	s.say("The Envoy of db is killed. Another one is started, and answers again, once Consul's check has seen it.")
	const pids = "pgrep -f $PWD/data/secrets/default/db/"
	s.sh(pids + " | tee db.pid && kill -9 $(cat db.pid)")
	s.until(pids+" | grep -vxFf db.pid", "")
	s.until(fmt.Sprintf("for i in $(seq 20); do curl -fsS --max-time 5 127.0.0.1:%d || exit 1; sleep 0.1; done | uniq -c", s.ports.moved),
		"20 "+greeting)

	s.say("db gets a second instance, which is then stopped: it leaves the catalog, its callers see that, and then it ends.")
	second := s.background("workload", "run", h.path("second.hcl"))
	s.until(ready("db-2/db"), "LIVE")
	s.until("curl -sS --unix-socket data/secrets/default/web/web/admin.sock http://envoy/clusters | grep '^db.*health_flags' | wc -l", "2")
	s.requests(s.ports.moved, func() {
		s.sh("sleep 1")
		s.end(second)
		s.sh("sleep 1")
	})

	s.say("Somebody copies web's token. Then the workloads end while Consul is killed and starts again.")
	s.sh("install -m 0600 data/secrets/default/web/web/si_token copy")
	s.killConsul()
	s.signal(web)
	s.signal(db)
	s.startConsul()
	s.ended(web)
	s.ended(db)

	s.say("Nothing of them is left: no service, no token, no intention, no file. The copy is worth nothing.")
	s.nothing("consul catalog services | sed -n '/^db/p; /^web/p'")
	s.nothing(siTokens)
	s.sh("pannier token list")
	s.nothing("consul config list -kind service-intentions")
	s.nothing("find data/secrets -mindepth 1 ! -name '.*'")
	s.refused("consul acl token read -self -token-file copy", "ACL not found")

	s.say("The agent and Consul stop.")
	s.stopAgent()
	s.stopConsul()
	s.check("no process of the plugins and no mount is left", s.nothingLeft)
	return s.err
}
