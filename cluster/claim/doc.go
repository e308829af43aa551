// Package claim holds what a claim on a volume is and when one may be taken:
// pure types and rules over them. Whoever applies a rule passes in the claims
// as they stand and the time that the leader stamped.
//
// It imports the standard library only, reads no clock, draws no random number
// and does no I/O: every server must come to the same answer from the same log.
package claim
