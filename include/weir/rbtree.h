/*
 * Intrusive red-black tree. The owner embeds struct rb_node, walks the tree to find the place to
 * insert, then calls rb_insert. Locking is the caller's. Any context.
 *
 *   struct rb_node **link = &tree->root, *parent = NULL;
 *   while (*link) { parent = *link; link = less ? &parent->left : &parent->right; }
 *   rb_insert(tree, node, parent, link);
 */
#ifndef WEIR_RBTREE_H
#define WEIR_RBTREE_H
#include <weir/compiler.h>

struct rb_node {
    struct rb_node *parent, *left, *right;
    bool red;
};
struct rb_tree {
    struct rb_node *root;
};

void rb_insert(struct rb_tree *tree, struct rb_node *node, struct rb_node *parent, struct rb_node **link);
void rb_remove(struct rb_tree *tree, struct rb_node *node);
struct rb_node *rb_first(const struct rb_tree *tree);
struct rb_node *rb_last(const struct rb_tree *tree);
struct rb_node *rb_next(const struct rb_node *node);
struct rb_node *rb_prev(const struct rb_node *node);
#endif
