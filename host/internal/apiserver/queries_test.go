package apiserver

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestQueriesWaitForAChange(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	get := func(read *hostv1.ReadOptions) (*hostv1.GetNodeResponse, error) {
		return h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "n2", Read: read})
	}
	now, err := get(nil)
	check.NoError(t, err)
	changed := make(chan *hostv1.GetNodeResponse, 1)
	go func() {
		resp, err := get(&hostv1.ReadOptions{Index: now.GetMeta().GetIndex()})
		if err != nil {
			t.Error(err)
		}
		changed <- resp
	}()
	h.putNode(t, "n3")
	select {
	case resp := <-changed:
		t.Errorf("answered without a change: %v", resp)
	case <-time.After(30 * time.Millisecond):
	}
	_, err = h.client.Nodes.DrainNode(h.ctx, &hostv1.DrainNodeRequest{Name: "n2", Enable: true})
	check.NoError(t, err)
	if resp := <-changed; resp.GetNode().GetDrain() == nil || resp.GetMeta().GetIndex() <= now.GetMeta().GetIndex() {
		t.Errorf("got %v", resp)
	}
	stale, err := get(&hostv1.ReadOptions{Stale: true, Index: 1 << 50, Wait: durationpb.New(time.Millisecond)})
	check.NoError(t, err)
	if !stale.GetMeta().GetKnownLeader() || stale.GetMeta().GetAge().AsDuration() != 0 {
		t.Errorf("the leader says of its own ledger %v", stale.GetMeta())
	}
	for _, wait := range []time.Duration{-time.Second, time.Hour} {
		_, err = get(&hostv1.ReadOptions{Index: 1, Wait: durationpb.New(wait)})
		wantError(t, err, connect.CodeInvalidArgument, "read.wait")
	}
	volumes := check.Must(h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{}))(t)
	tokens := check.Must(h.client.Tokens.ListTokens(h.ctx, &hostv1.ListTokensRequest{}))(t)
	if volumes.GetMeta().GetIndex() == 0 || tokens.GetMeta().GetIndex() == 0 {
		t.Errorf("answers without an index: %v, %v", volumes, tokens)
	}
}

func TestWatch(t *testing.T) {
	h := openHost(t)
	for _, topics := range [][]string{nil, {"volumes", "weather"}} {
		stream := check.Must(h.client.System.Watch(h.ctx, &hostv1.WatchRequest{Topics: topics}))(t)
		stream.Receive()
		wantError(t, stream.Err(), connect.CodeInvalidArgument, "topics", "volumes")
		check.NoError(t, stream.Close())
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream := check.Must(h.client.System.Watch(ctx, &hostv1.WatchRequest{Topics: []string{"nodes"}}))(t)
	last := uint64(0)
	for _, name := range []string{"", "n2", "n3"} {
		if name != "" {
			h.putNode(t, name)
		}
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		if index := stream.Msg().GetIndex(); index <= last {
			t.Errorf("index %d after %d", index, last)
		} else {
			last = index
		}
	}
}
