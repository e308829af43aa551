// Command attacks tries what an attacker would try, for real, and checks that it does not work.
//
// An attack is an entry of the table: who tries what, what stops it, and the test that does it. The test makes the
// attack with the built programs or the packages that decide, and fails where it works. An attack is tried if its test
// ran, or each of its subtests that the entry names: a skipped test, and one that does not exist, is an error.
//
//	make attacks                     all of them; the last line is "attacks: N tried, M worked"
//	make attacks ONLY='token|gossip' those whose attacker, text or test matches
//
// The test of this package checks the table in make quick: each test exists, and TABLE.md lists each attack. An area's
// attacks are in its table_<area>.go; a new one needs an entry, and make docs.
package main
