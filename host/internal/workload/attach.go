package workload

import (
	"context"
	"fmt"
	"slices"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// attach makes the volume available on this node. The first user of it here asks
// the driver's controller; the others take its publish context.
func (r *run) attach(ctx context.Context, v *volume) error {
	unlock, err := r.locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	u, err := r.join(attachments, attachmentKey(v.Ref), v)
	if err != nil {
		return err
	}
	if !u.Done {
		capability := v.known().Capability
		if u.PublishContext, err = r.Controller.Attach(ctx, v.info, capability, r.Node); err != nil {
			return err
		}
		u.Done = true
		if err := r.saveUsers(attachments, attachmentKey(v.Ref), u); err != nil {
			return err
		}
	}
	return r.update(nil, func(*record) { v.PublishContext = u.PublishContext })
}

// leaveAttachment ends this use. Whether the controller is asked to detach is the
// leader's decision, from the claims as they stand when this one is released.
func (r *run) leaveAttachment(ctx context.Context, v *volume) error {
	unlock, err := r.locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	return r.leave(attachments, attachmentKey(v.Ref), v)
}

// join adds the volume request to those who use a mount or an attachment, before
// anything is done for it.
func (r *run) join(b journal.Bucket[users], key string, v *volume) (*users, error) {
	u, err := r.loadUsers(b, key)
	if err != nil {
		return nil, err
	}
	if u == nil {
		u = &users{Driver: v.Driver}
	}
	if u.Driver != v.Driver {
		return nil, fmt.Errorf("volume %q is still in use here through driver %q, not %q", v.Ref, u.Driver, v.Driver)
	}
	if me := r.user(v); !slices.Contains(u.Users, me) {
		u.Users = append(u.Users, me)
	}
	return u, r.saveUsers(b, key, u)
}

// leave takes the request off the users; the last one takes the record along.
func (r *run) leave(b journal.Bucket[users], key string, v *volume) error {
	u, err := r.loadUsers(b, key)
	if err != nil || u == nil {
		return err
	}
	u.Users = slices.DeleteFunc(u.Users, func(s string) bool { return s == r.user(v) })
	return r.saveUsers(b, key, u)
}

// user names one volume request of one workload on this node.
func (r *run) user(v *volume) string { return key(r.ref) + "/" + v.Request.Name }

func (m *Manager) loadUsers(b journal.Bucket[users], key string) (u *users, err error) {
	err = m.journal.View(func(tx *journal.Tx) error {
		u, err = b.Get(tx, key)
		return err
	})
	return u, err
}

// saveUsers writes the record, or deletes it when nobody uses it any more.
func (m *Manager) saveUsers(b journal.Bucket[users], key string, u *users) error {
	defer failpoint.Here(string(b), "saved")
	return m.journal.Update(func(tx *journal.Tx) error {
		if len(u.Users) == 0 {
			return b.Delete(tx, key)
		}
		return b.Put(tx, key, u)
	})
}
