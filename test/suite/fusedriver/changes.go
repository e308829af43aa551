package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// changes says what becomes of the changes of a file system: how late they are, and the error that they fail with.
type changes struct {
	late  atomic.Int64 // time.Duration
	error atomic.Uint32
}

// answer waits, and returns the error of a change.
func (c *changes) answer() syscall.Errno {
	time.Sleep(time.Duration(c.late.Load()))
	return syscall.Errno(c.error.Load())
}

// mountChanges serves a directory at a target, until it is unmounted. The first lines of its input are these two, and
// each line after them says what becomes of changes from then on: the number of an error or 0, and milliseconds. It
// answers by a line that it serves, and by each line that is in force.
func mountChanges(input io.Reader, output io.Writer) error {
	lines := bufio.NewScanner(input)
	lines.Scan()
	dir := lines.Text()
	lines.Scan()
	target := lines.Text()
	c := &changes{}
	root := &fs.LoopbackRoot{Path: dir}
	top := &changeNode{&fs.LoopbackNode{RootData: root}, c}
	root.RootNode = top
	server, err := fs.Mount(target, top, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "changes", DirectMountStrict: true, AllowOther: true, Options: []string{"default_permissions"},
	}})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(output, "it serves")
	for lines.Scan() {
		var errno uint32
		var late int64
		if _, err := fmt.Sscan(lines.Text(), &errno, &late); err != nil {
			return err
		}
		c.error.Store(errno)
		c.late.Store(int64(time.Duration(late) * time.Millisecond))
		_, _ = fmt.Fprintln(output, lines.Text())
	}
	server.Wait()
	return nil
}

// A changeNode is a file or a folder of such a file system.
type changeNode struct {
	*fs.LoopbackNode
	c *changes
}

// WrapChild implements fs.NodeWrapChilder.
func (n *changeNode) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &changeNode{child.(*fs.LoopbackNode), n.c}
}

func (n *changeNode) Mknod(
	ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut,
) (*fs.Inode, syscall.Errno) {
	if err := n.c.answer(); err != 0 {
		return nil, err
	}
	return n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
}

func (n *changeNode) Mkdir(
	ctx context.Context, name string, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, syscall.Errno) {
	if err := n.c.answer(); err != 0 {
		return nil, err
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *changeNode) Symlink(
	ctx context.Context, target, name string, out *fuse.EntryOut,
) (*fs.Inode, syscall.Errno) {
	if err := n.c.answer(); err != 0 {
		return nil, err
	}
	return n.LoopbackNode.Symlink(ctx, target, name, out)
}

func (n *changeNode) Rename(
	ctx context.Context, name string, parent fs.InodeEmbedder, to string, flags uint32,
) syscall.Errno {
	if err := n.c.answer(); err != 0 {
		return err
	}
	return n.LoopbackNode.Rename(ctx, name, parent, to, flags)
}

func (n *changeNode) Setattr(
	ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut,
) syscall.Errno {
	if err := n.c.answer(); err != 0 {
		return err
	}
	return n.LoopbackNode.Setattr(ctx, inner(f), in, out)
}

func (n *changeNode) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.LoopbackNode.Getattr(ctx, inner(f), out)
}

func (n *changeNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, kernel, err := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(f), kernel, err
}

func (n *changeNode) Create(
	ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if err := n.c.answer(); err != 0 {
		return nil, nil, 0, err
	}
	inode, f, kernel, err := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.wrap(f), kernel, err
}

func (n *changeNode) wrap(f fs.FileHandle) fs.FileHandle {
	if f, ok := f.(*fs.LoopbackFile); ok {
		return &changeFile{f, n.c}
	}
	return f
}

func inner(f fs.FileHandle) fs.FileHandle {
	if f, ok := f.(*changeFile); ok {
		return f.f
	}
	return f
}

// A changeFile is an open file. The kernel does not pass its calls on by itself (fs.FilePassthroughFder).
type changeFile struct {
	f *fs.LoopbackFile
	c *changes
}

func (f *changeFile) Read(ctx context.Context, to []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return f.f.Read(ctx, to, off)
}

func (f *changeFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if err := f.c.answer(); err != 0 {
		return 0, err
	}
	return f.f.Write(ctx, data, off)
}

func (f *changeFile) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if err := f.c.answer(); err != 0 {
		return err
	}
	return f.f.Allocate(ctx, off, size, mode)
}

func (f *changeFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if err := f.c.answer(); err != 0 {
		return err
	}
	return f.f.Fsync(ctx, flags)
}

func (f *changeFile) Flush(ctx context.Context) syscall.Errno   { return f.f.Flush(ctx) }
func (f *changeFile) Release(ctx context.Context) syscall.Errno { return f.f.Release(ctx) }
