package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// waitForChange asks for a volume after an index, and returns the answer.
func waitForChange(t *testing.T, through *testhost.Host, volume string,
	index uint64,
) (answers chan *hostv1.GetVolumeResponse) {
	t.Helper()
	client, ctx := through.Client(), testhost.Soon(t)
	answers = make(chan *hostv1.GetVolumeResponse, 1)
	go func() {
		defer close(answers)
		resp, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
			Id: volume, Read: &hostv1.ReadOptions{Index: index, Wait: durationpb.New(testhost.Wait)},
		})
		if err != nil {
			t.Errorf("a blocking query through %s: %v", through.Name, err)
			return
		}
		answers <- resp
	}()
	return answers
}

// waiting makes blocking queries through a follower and through a node. They survive a change of leader.
func (n nodes) waiting(t *testing.T) {
	n.c.Volume(n.s3, "watched", "single-node-writer")
	read := func(through *testhost.Host, how *hostv1.ReadOptions) *hostv1.GetVolumeResponse {
		t.Helper()
		resp, err := through.Client().Volumes.GetVolume(testhost.Soon(t), &hostv1.GetVolumeRequest{Id: "watched", Read: how})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	index := read(n.s3, nil).GetMeta().GetIndex()
	begun := time.Now()
	if again := read(n.n2, &hostv1.ReadOptions{
		Index: index,
		Wait:  durationpb.New(200 * time.Millisecond),
	}); time.Since(begun) < 200*time.Millisecond {
		t.Errorf("a query for changes after %d returned without any after %s: %v", index, time.Since(begun), again)
	}
	throughServer, throughNode := waitForChange(t, n.s3, "watched", index), waitForChange(t, n.n2, "watched", index)
	n.c.Volume(n.s3, "other", "single-node-writer") // a change to a volume that they do not query
	lead(n.c, n.s2.Name)
	start(n.c, n.n1, "watched", "watched")
	for name, answers := range map[string]chan *hostv1.GetVolumeResponse{
		"a server": throughServer,
		"a node":   throughNode,
	} {
		if got := <-answers; got.GetMeta().GetIndex() <= index || len(got.GetVolume().GetClaims()) != 1 {
			t.Errorf("after the index %d the answer through %s is %v", index, name, got)
		}
	}
}

// watching follows a stream of changes through a node.
func (n nodes) watching(t *testing.T) {
	ctx, cancel := context.WithCancel(testhost.Soon(t))
	defer cancel()
	stream, err := n.n2.Client().System.Watch(ctx, &hostv1.WatchRequest{Topics: []string{"claims"}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	next := func() uint64 {
		t.Helper()
		if !stream.Receive() {
			t.Fatalf("the stream of changes ended: %v", stream.Err())
		}
		return stream.Msg().GetIndex()
	}
	before := next()
	n.n1.Run("workload", "stop", "watched")
	for told := false; !told || len(n.n2.Volume("watched").GetClaims()) > 0; told = true {
		now := next()
		if now <= before {
			t.Errorf("the stream says %d after %d", now, before)
		}
		before = now
	}
}

// stale makes stale reads from a server that is cut off from the leader.
func (n nodes) stale(t *testing.T) {
	n.c.Net.Part(n.s3.Net)
	defer n.c.Net.Heal()
	n.c.Volume(n.n1, "unseen", "single-node-writer")
	n.s3.Eventually("a stale answer tells its age", func() error {
		resp, err := n.s3.Client().Volumes.ListVolumes(testhost.Soon(t),
			&hostv1.ListVolumesRequest{Read: &hostv1.ReadOptions{Stale: true}})
		if err != nil {
			return err
		}
		for _, v := range resp.GetVolumes() {
			if v.GetSpec().GetId() == "unseen" {
				t.Error("a disconnected server knows a volume that was created meanwhile")
			}
		}
		if meta := resp.GetMeta(); meta.GetKnownLeader() || meta.GetAge().AsDuration() < time.Second {
			return fmt.Errorf("it says %v", meta)
		}
		return nil
	})
	if r := n.s3.Try("volume", "status", "-stale"); r.Code != 0 || !strings.Contains(r.Stdout, "watched") ||
		!strings.Contains(r.Stderr, "knows of no leader") {
		t.Errorf("a stale list of a server that is cut off: %+v", r)
	}
	ended := begin(t, n.s3, "volume", "status", "unseen")
	n.c.Net.Heal()
	if err := outcome(t, ended); err != nil {
		t.Errorf("a consistent query to a disconnected server: %v", err)
	}
	n.s3.Eventually("a stale answer of a server that follows is young", func() error {
		r := n.s3.Try("volume", "status", "-stale")
		if !strings.Contains(r.Stdout, "unseen") || !strings.Contains(r.Stderr, " ago or later") {
			return errors.New(r.Stdout + r.Stderr)
		}
		return nil
	})
}

// once drops the leader's answer to a node's command, and kills the leader. The node repeats the command to
// the next leader, which must not execute it again, although the claims of the first execution are released
// by then.
func (n nodes) once(t *testing.T) {
	n.c.Volume(n.n1, "once", "single-node-writer")
	leader := n.c.Leader()
	follower := n.s3
	if leader == n.s3 {
		follower = n.s1
	}
	spec := n.c.Workload(n.n1, "once", "once")
	follower.AwaitNode(n.n1.Name, "ready")
	n.c.Net.Set(leader.Net, n.n1.Net, testnet.Link{Delay: 3 * time.Second})
	defer n.c.Net.Heal()
	ended := begin(t, n.n1, "workload", "start", spec)
	follower.Eventually("the claim is taken", func() error {
		resp, err := follower.Client().Volumes.GetVolume(testhost.Soon(t),
			&hostv1.GetVolumeRequest{Id: "once", Read: &hostv1.ReadOptions{Stale: true}})
		if err == nil && len(resp.GetVolume().GetClaims()) != 1 {
			err = errors.New("it is not")
		}
		return err
	})
	n.c.Net.Part(n.n1.Net)
	leader.Kill()
	follower.Run("volume", "detach", "-force", "-yes", "once", n.n1.Name)
	follower.AwaitFree("once")
	n.c.Net.Heal()
	// A start that was executed twice would have claims, or would be refused because the node missed heartbeats.
	// The node hears of its loss from the next leader's answer, or from a heartbeat before that.
	err := outcome(t, ended)
	if err == nil || !strings.Contains(err.Error(), `holds no claim on volume "once"`) &&
		!strings.Contains(err.Error(), "the ledger has released its claims on [once]") {
		t.Errorf("a start whose claims were revoked after it was applied: %v", err)
	}
	follower.AwaitFree("once")
	n.c.AwaitStarted(n.n1, "once", "once")
	n.n1.Run("workload", "stop", "once")
	launch(leader)
}
