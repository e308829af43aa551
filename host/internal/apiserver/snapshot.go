package apiserver

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// snapshotChunk is how much of a snapshot one message has, in bytes.
const snapshotChunk = 256 << 10

// SaveSnapshot streams the ledger as it is.
func (s operatorService) SaveSnapshot(ctx context.Context, _ *connect.Request[hostv1.SaveSnapshotRequest], stream *connect.ServerStream[hostv1.SaveSnapshotResponse]) error {
	info, err := s.cfg.Raft.Save(ctx, chunks(func(chunk []byte) error {
		return stream.Send(&hostv1.SaveSnapshotResponse{Chunk: chunk})
	}))
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.SaveSnapshotResponse{Snapshot: snapshotInfo(info)})
}

// chunks writes by sending messages of at most snapshotChunk bytes.
type chunks func(chunk []byte) error

func (send chunks) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(n+snapshotChunk, len(p))]
		if err := send(part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// nothingClaimed refuses while claims stand: the snapshot may not know of them, and would let
// others write to what their workloads have mounted.
func (s *Server) nothingClaimed(ctx context.Context) error {
	return s.cfg.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) error {
		claims, err := tx.AllClaims()
		if err != nil || len(claims) == 0 {
			return err
		}
		c := claims[0]
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%d claims stand, such as that of workload %q on volume %q on node %q: a snapshot may not know of them, "+
			"and let others write to the same volume; stop the workloads first, as with: pannier node drain -enable %s", len(claims), c.Workload, c.Volume, c.Node, c.Node))
	})
}

// RestoreSnapshot puts a snapshot in place of the ledger.
func (s operatorService) RestoreSnapshot(ctx context.Context, stream *connect.ClientStream[hostv1.RestoreSnapshotRequest]) (*connect.Response[hostv1.RestoreSnapshotResponse], error) {
	if err := s.nothingClaimed(ctx); err != nil {
		return nil, err
	}
	s.log.Warn("the ledger is replaced by a snapshot", "by", callerOf(ctx).who())
	info, err := s.cfg.Raft.Restore(ctx, &received{stream: stream})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.RestoreSnapshotResponse{Snapshot: snapshotInfo(info)}), nil
}

// received reads the chunks of a stream as they come.
type received struct {
	stream *connect.ClientStream[hostv1.RestoreSnapshotRequest]
	left   []byte
}

func (r *received) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.left = r.stream.Msg().GetChunk()
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

func snapshotInfo(b cluster.Backup) *hostv1.SnapshotInfo {
	return &hostv1.SnapshotInfo{
		Index: b.Index, Term: b.Term, Size: b.Size, Checksum: b.SHA256, CreatedAt: timestamp(b.CreatedAt), Cluster: b.Cluster, Server: b.Server,
	}
}
