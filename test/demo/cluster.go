package main

import (
	"context"
	"errors"
)

// clusterStory runs the cluster demo.
func clusterStory(ctx context.Context, h *host, keep bool) (err error) {
	s := &clusterTeller{
		teller: &teller{ctx: ctx, h: h}, names: clusterHosts, servers: clusterServers, pagesOf: "node-2",
		joins: true,
	}
	defer func() { err = errors.Join(err, s.cleanUp()) }()

	s.say("A folder for all that follows, and five hosts, each with a network of its own. One command each makes them a\n" +
		"# cluster: three servers, which keep the ledger, and two nodes.\n" +
		"# A node that nobody answers for 6 s stops its workloads; 5 s later the leader lets go of its claims.")
	s.prepare()
	s.addHosts()
	s.forms()
	s.sh("", "cat node-1.etc/cluster.hcl")
	s.awaitAll()
	s.shows("node-1", "pannier server members", has("server-3"))
	s.sh("node-1", "pannier operator raft list-peers")
	s.pages()

	s.say("A volume that all hosts can reach, for one writer at a time. The workload db gets it on node-1, and writes.")
	s.sh("server-1", "pannier volume create data.hcl")
	db := s.writer("node-1", "db")
	s.writes("node-1")
	s.shows("node-2", "pannier volume status data", has("db"))
	s.refused("node-2", "pannier workload run other.hcl -- true", `workload "db" on node "node-1"`)

	s.say("The server that leads is killed. The others choose another one, and claims go on.")
	old := s.killLeader()
	s.sh("node-2", "pannier volume create scratch.hcl")
	s.sh("node-2", "pannier workload run scratch-user.hcl -- sh -c 'echo claimed >"+h.mnt()+"/it && cat "+h.mnt()+"/it'")
	s.since("the kill")
	s.until("node-2", "pannier operator raft list-peers", has("leader"))
	s.writes("node-1")
	s.say("It comes back as a follower.")
	s.startHost(old)
	s.until("node-2", "pannier operator autopilot health", has("1 more server may fail"))

	s.say(
		"node-1 is cut off from all others. db goes on to write there, and node-2 wants its volume: the workload db-2 replaces db.")
	s.cut("node-1")
	s.writes("node-1")
	db2 := s.writer("node-2", "db-2")
	s.until("server-1", "pannier volume explain data", has("disconnected"))
	s.say("node-1 stops db by its own clock, though nobody can tell it to.")
	s.writerEnds("node-1")
	s.sh("node-1", "pannier workload status db | head -7")
	s.say("Only after that the leader lets go of the claim, and db-2 gets the volume.")
	s.writes("node-2")
	s.sh("node-2", "pannier volume status data | tail -2")
	s.handedOver("node-1", "node-2")

	s.say("node-1 is connected again. Its claim is gone, it has nothing mounted, and is a node like others.")
	s.heal()
	s.until("node-2", "pannier node status", s.allReady)
	s.ends(db)
	s.check("db's volume is not mounted on node-1", func() error { return s.notMounted("node-1") })
	s.sh("node-1", "pannier volume explain data")

	if keep {
		s.keep()
		return s.err
	}
	s.say("db-2 is asked to end, and all is deleted.")
	s.end(db2)
	s.until("node-1", "pannier volume explain data", has("nobody"))
	s.sh("node-1", "pannier volume delete data && pannier volume delete scratch")
	s.stopAll()
	s.check("no process and no mount is left", s.nothingRuns, h.noMounts)
	return s.err
}
