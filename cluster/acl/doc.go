// Package acl holds what the ledger keeps of who may do what: policies, roles and tokens.
// What a policy's rules mean is read elsewhere; here they are text.
//
// It imports cluster/claim and the standard library only, reads no clock, draws no random
// number and does no I/O.
package acl
