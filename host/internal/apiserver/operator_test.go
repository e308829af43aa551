package apiserver

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestGarbageIsTold(t *testing.T) {
	h := openHost(t)
	resp := check.Must(h.client.System.CollectGarbage(h.ctx, &hostv1.CollectGarbageRequest{DryRun: true}))(t)
	if len(resp.GetGarbage()) != 0 {
		t.Errorf("garbage %v", resp)
	}
}

func TestRaftOfOne(t *testing.T) {
	h := openHost(t)
	peers := check.Must(h.client.Operator.ListPeers(h.ctx, &hostv1.ListPeersRequest{}))(t)
	if p := peers.GetPeers(); len(p) != 1 || !p[0].GetLeader() || !p[0].GetVoter() {
		t.Errorf("peers %v", p)
	}
	_, err := h.client.Operator.RemovePeer(h.ctx, &hostv1.RemovePeerRequest{Name: "nobody"})
	wantError(t, err, connect.CodeNotFound, "nobody")
	_, err = h.client.Operator.RemovePeer(h.ctx, &hostv1.RemovePeerRequest{Name: peers.GetPeers()[0].GetName()})
	wantError(t, err, connect.CodeFailedPrecondition, "alive")
	health, err := h.client.Operator.AutopilotHealth(h.ctx, &hostv1.AutopilotHealthRequest{})
	check.NoError(t, err)
	if !health.GetHealthy() || health.GetFailureTolerance() != 0 {
		t.Errorf("health %v", health)
	}
	quorum := uint32(5)
	_, err = h.client.Operator.SetAutopilot(h.ctx,
		&hostv1.SetAutopilotRequest{Autopilot: &hostv1.Autopilot{MinQuorum: &quorum}})
	check.NoError(t, err)
	got, err := h.client.Operator.GetAutopilot(h.ctx, &hostv1.GetAutopilotRequest{})
	check.NoError(t, err)
	if a := got.GetAutopilot(); a.GetMinQuorum() != 5 || !a.GetCleanupDeadServers() ||
		a.GetLastContactThreshold().AsDuration() <= 0 {
		t.Errorf("autopilot %v", a)
	}
	_, err = h.client.Operator.SetAutopilot(h.ctx,
		&hostv1.SetAutopilotRequest{Autopilot: &hostv1.Autopilot{LastContactThreshold: durationpb.New(-1)}})
	wantError(t, err, connect.CodeInvalidArgument, "last_contact_threshold")
}

// restore sends a snapshot in small parts.
func (h *host) restore(data []byte) (*hostv1.RestoreSnapshotResponse, error) {
	stream, err := h.client.Operator.RestoreSnapshot(h.ctx)
	if err != nil {
		return nil, err
	}
	for len(data) > 0 {
		n := min(1000, len(data))
		if err := stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: data[:n]}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		data = data[n:]
	}
	return stream.CloseAndReceive()
}

// A claim that is granted while a snapshot comes over a slow line stays: the restore is refused.
func TestClaimDuringTheUploadOfASnapshot(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	var saved bytes.Buffer
	check.Must(h.ledger.Save(h.ctx, &saved))(t)
	stream := check.Must(h.client.Operator.RestoreSnapshot(h.ctx))(t)
	half := saved.Len() / 2
	check.NoError(t, stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: saved.Bytes()[:half]}))
	check.Eventually(t, "the upload has begun", func() bool {
		return strings.Contains(h.log.String(), "the ledger is to be replaced by a snapshot")
	})
	held := claim.WorkloadRef{Namespace: "default", ID: "db"}
	check.Must(cluster.Apply(h.ctx, h.ledger, command.Start(claim.Run{Ref: held, Node: "n2"}, []claim.Claim{{
		Volume: volumeOf("mysql"), Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	}})))(t)
	if err := stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: saved.Bytes()[half:]}); !errors.Is(err, io.EOF) {
		check.NoError(t, err)
	}
	_, err := stream.CloseAndReceive()
	wantError(t, err, connect.CodeFailedPrecondition, `"db"`, `"mysql"`, `"n2"`)
	v := check.Must(h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"}))(t)
	if claims := v.GetVolume().GetClaims(); len(claims) != 1 || claims[0].GetWorkload() != "db" {
		t.Errorf("the claims are %v", claims)
	}
}

func TestSaveAndRestoreTheLedger(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("kept"))
	stream := check.Must(h.client.Operator.SaveSnapshot(h.ctx, &hostv1.SaveSnapshotRequest{}))(t)
	var saved bytes.Buffer
	var info *hostv1.SnapshotInfo
	for stream.Receive() {
		if len(stream.Msg().GetChunk()) > 256<<10 {
			t.Errorf("a message of %d bytes", len(stream.Msg().GetChunk()))
		}
		saved.Write(stream.Msg().GetChunk())
		info = stream.Msg().GetSnapshot()
	}
	check.NoError(t, stream.Err())
	check.NoError(t, stream.Close())
	b := check.Must(backup.Inspect(bytes.NewReader(saved.Bytes())))(t)
	if info.GetIndex() != b.Index || info.GetChecksum() != b.SHA256 || info.GetCreatedAt() == nil {
		t.Errorf("told %v, it is %+v", info, b)
	}
	if bytes.Contains(saved.Bytes(), []byte(secretValue)) {
		t.Error("a volume's secret is in it in clear")
	}

	h.create(t, spec("lost"))
	damaged := bytes.Clone(saved.Bytes())
	damaged[len(damaged)/2] ^= 0xff
	_, err := h.restore(damaged)
	wantError(t, err, connect.CodeInvalidArgument, "bad backup")
	if _, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "lost"}); err != nil {
		t.Errorf("a damaged snapshot has changed the ledger: %v", err)
	}
	held := claim.WorkloadRef{Namespace: "default", ID: "db"}
	_, err = cluster.Apply(h.ctx, h.ledger, command.Start(claim.Run{Ref: held, Node: "n2"}, []claim.Claim{{
		Volume: claim.VolumeRef{
			Namespace: "default",
			ID:        "lost",
		}, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	}}))

	check.NoError(t, err)
	_, err = h.restore(saved.Bytes())
	wantError(t, err, connect.CodeFailedPrecondition, `"db"`, `"lost"`, `"n2"`, "pannier node drain")
	_, err = cluster.DeregisterVolume(h.ctx, h.ledger, claim.VolumeRef{Namespace: "default", ID: "lost"}, true)
	check.NoError(t, err)
	back, err := h.restore(saved.Bytes())
	check.NoError(t, err)
	if back.GetSnapshot().GetChecksum() != b.SHA256 {
		t.Errorf("restored %v", back)
	}
	_, err = h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "kept"})
	check.NoError(t, err)
	_, err = h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "lost"})
	wantError(t, err, connect.CodeNotFound, "lost")
}
