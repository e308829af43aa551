package apiserver

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// restore sends a snapshot in small parts.
func (h *host) restore(data []byte) (*hostv1.RestoreSnapshotResponse, error) {
	stream := h.client.Operator.RestoreSnapshot(h.ctx)
	for len(data) > 0 {
		n := min(1000, len(data))
		if err := stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: data[:n]}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		data = data[n:]
	}
	resp, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return resp.Msg, nil
}

func TestSaveAndRestoreTheLedger(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("kept"))
	stream, err := h.client.Operator.SaveSnapshot(h.ctx, request(&hostv1.SaveSnapshotRequest{}))
	must(t, err)
	var saved bytes.Buffer
	var info *hostv1.SnapshotInfo
	for stream.Receive() {
		if len(stream.Msg().GetChunk()) > snapshotChunk {
			t.Errorf("a message of %d bytes", len(stream.Msg().GetChunk()))
		}
		saved.Write(stream.Msg().GetChunk())
		info = stream.Msg().GetSnapshot()
	}
	must(t, stream.Err())
	must(t, stream.Close())
	b, err := cluster.Inspect(bytes.NewReader(saved.Bytes()))
	must(t, err)
	if info.GetIndex() != b.Index || info.GetChecksum() != b.SHA256 || info.GetCreatedAt() == nil {
		t.Errorf("told %v, it is %+v", info, b)
	}
	if bytes.Contains(saved.Bytes(), []byte(secretValue)) {
		t.Error("a volume's secret is in it in clear")
	}

	h.create(t, spec("lost"))
	damaged := bytes.Clone(saved.Bytes())
	damaged[len(damaged)/2] ^= 0xff
	_, err = h.restore(damaged)
	wantError(t, err, connect.CodeInvalidArgument, "bad backup")
	if _, err := h.client.Volumes.GetVolume(h.ctx, request(&hostv1.GetVolumeRequest{Id: "lost"})); err != nil {
		t.Errorf("a damaged snapshot has changed the ledger: %v", err)
	}
	held := claim.WorkloadRef{Namespace: "default", ID: "db"}
	_, err = h.ledger.StartWorkload(h.ctx, claim.Run{Ref: held, Node: "n2"}, []claim.Claim{{
		Volume: claim.VolumeRef{Namespace: "default", ID: "lost"}, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	}})

	must(t, err)
	_, err = h.restore(saved.Bytes())
	wantError(t, err, connect.CodeFailedPrecondition, `"db"`, `"lost"`, `"n2"`, "pannier node drain")
	_, err = h.ledger.DeregisterVolume(h.ctx, claim.VolumeRef{Namespace: "default", ID: "lost"}, true)
	must(t, err)
	back, err := h.restore(saved.Bytes())
	must(t, err)
	if back.GetSnapshot().GetChecksum() != b.SHA256 {
		t.Errorf("restored %v", back)
	}
	_, err = h.client.Volumes.GetVolume(h.ctx, request(&hostv1.GetVolumeRequest{Id: "kept"}))
	must(t, err)
	_, err = h.client.Volumes.GetVolume(h.ctx, request(&hostv1.GetVolumeRequest{Id: "lost"}))
	wantError(t, err, connect.CodeNotFound, "lost")
}
