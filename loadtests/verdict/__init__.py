"""Does a live target keep its promises at a rate, and up to which rate?"""
