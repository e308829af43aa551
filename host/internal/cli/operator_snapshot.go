package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/internal/atomicfile"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// chunkSize is the size of a snapshot's chunk in one message, in bytes.
const chunkSize = 256 << 10

// ledgerVerbs save, restore and inspect copies of the ledger.
func ledgerVerbs() []verb {
	return []verb{
		{
			use: "save FILE", short: "Write a copy of the ledger to a new file",
			long: `Write a copy of the ledger to a new file, which only you can read. Secrets in it are
encrypted. Needs a management token when ACLs are on.`,
			example: `"ledger-$(date +%F).snapshot"`,
			run: func(ctx context.Context, c *call) error {
				stream, err := c.Operator.SaveSnapshot(ctx, &hostv1.SaveSnapshotRequest{})
				if err != nil {
					return err
				}
				defer stream.Close()
				info, err := writeSnapshot(c.args[0], stream)
				return c.Done(info, err, "wrote %s: the ledger at index %d, %s", c.args[0], info.GetIndex(), size(info.GetSize()))
			},
		},
		{
			use: "restore FILE", short: "Replace the ledger by a copy, on every server", example: "ledger.snapshot",
			long: `Replace the ledger by a copy, on every server. The copy is checked first. Everything
that changed after it was made is lost. Refused while there are claims.`,
			run: restoreSnapshot,
		},
		{
			use: "inspect FILE", short: "Check a copy of the ledger and describe it; needs no agent", example: "ledger.snapshot",
			local: func(_ context.Context, c *call) error {
				f, info, err := openSnapshot(c.args[0])
				if err != nil {
					return err
				}
				if err := f.Close(); err != nil {
					return err
				}
				t := NewTable()
				t.Row("Cluster", info.Cluster)
				t.Row("Server", info.Server)
				t.Row("Created", info.CreatedAt.Format(time.DateTime))
				t.Row("Index", info.Index)
				t.Row("Term", info.Term)
				t.Row("Size", size(info.Size))
				t.Row("SHA-256", info.SHA256)
				return c.Tables(&hostv1.SnapshotInfo{
					Index: info.Index, Term: info.Term, Size: info.Size, Checksum: info.SHA256,
					CreatedAt: timestamppb.New(info.CreatedAt), Cluster: info.Cluster, Server: info.Server,
				}, nil, t)
			},
		},
	}
}

// writeSnapshot creates the complete file, or none.
func writeSnapshot(path string,
	stream *connect.ServerStreamForClient[hostv1.SaveSnapshotResponse],
) (info *hostv1.SnapshotInfo, err error) {
	err = atomicfile.Create(path, func(f *os.File) (err error) {
		info, err = copySnapshot(f, stream)
		return err
	})
	return info, exists(err, path, "name another file")
}

// copySnapshot writes what the stream has to a file, and checks it.
func copySnapshot(f *os.File,
	stream *connect.ServerStreamForClient[hostv1.SaveSnapshotResponse],
) (info *hostv1.SnapshotInfo, err error) {
	for stream.Receive() {
		if info = stream.Msg().GetSnapshot(); info != nil {
			break
		}
		if _, err := f.Write(stream.Msg().GetChunk()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if info == nil {
		return nil, errors.New("the snapshot was cut off: try again")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if _, err := backup.Inspect(f); err != nil {
		return nil, fmt.Errorf("the written file is not a snapshot: %w", err)
	}
	return info, nil
}

func restoreSnapshot(ctx context.Context, c *call) error {
	f, _, err := openSnapshot(c.args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	stream, err := c.Operator.RestoreSnapshot(ctx)
	if err != nil {
		return err
	}
	for chunk := make([]byte, chunkSize); ; {
		n, err := f.Read(chunk)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", c.args[0], err)
		}
		// The answer has the reason.
		if err := stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: chunk[:n]}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	resp, err := stream.CloseAndReceive()
	return c.Done(resp, err, "restored the ledger from %s, at index %d", c.args[0], resp.GetSnapshot().GetIndex())
}

// openSnapshot opens a file and checks that it is a complete snapshot.
func openSnapshot(path string) (*os.File, backup.Backup, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, backup.Backup{}, Coded(ExitNotFound, err)
	}
	if err != nil {
		return nil, backup.Backup{}, err
	}
	info, err := backup.Inspect(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, info, errors.Join(Coded(ExitUsage, fmt.Errorf("%s: %w", path, err)), f.Close())
	}
	return f, info, nil
}
